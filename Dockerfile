# Two images: --target cpu and --target gpu. `make image` builds the first, `make image TARGET=gpu`
# the second. What they are made of is in container/; nothing else is fetched.
# The tag names one Python; a digest (python@sha256:...) would name one build of it.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.9-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PATH=/opt/python/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1
# The project has a folder, and a layer, of its own: with it changes a little, not a gigabyte.
RUN python -m venv /opt/python \
    && echo /opt/tfdist > /opt/python/lib/python3.11/site-packages/tfdist.pth
COPY container/install /usr/local/bin/install-packages
WORKDIR /src

FROM build AS packages-cpu
COPY container/cpu.txt packages.txt
RUN install-packages packages.txt

FROM build AS packages-gpu
COPY container/gpu.txt packages.txt
RUN install-packages packages.txt

FROM packages-cpu AS project
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY tfdist tfdist
RUN pip install --no-compile --no-deps --no-build-isolation --target /opt/tfdist . \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/tfdist
# Whatever user a cluster chooses is in group 0: what the owner may, the group may.
RUN TFDIST_DATA_DIR=/data python -c "import tfdist; tfdist.data.load('digits')" \
    && find /data -name '*.lock' -delete \
    && chmod -R g=u /data

FROM ${PYTHON_IMAGE} AS run
RUN useradd --uid 1000 --gid 0 --create-home tfdist && chmod 0770 /home/tfdist
COPY --from=project --chown=1000:0 /data /data
COPY --from=project /opt/tfdist /opt/tfdist
ENV PATH=/opt/tfdist/bin:/opt/python/bin:$PATH \
    HOME=/home/tfdist \
    USER=tfdist \
    TFDIST_DATA_DIR=/data \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /home/tfdist
# By number, so that Kubernetes sees that it is not root.
USER 1000:0
CMD ["tfdist", "--help"]

FROM run AS gpu
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages-gpu /opt/python /opt/python

# The last one is what a build without --target makes.
FROM run AS cpu
COPY --from=packages-cpu /opt/python /opt/python
