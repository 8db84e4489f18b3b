"""What all workers must have alike: said field by field, and compared before it can do harm."""
