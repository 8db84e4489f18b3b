"""Estimates what a training run costs: operations, time, memory, bytes on the wire, money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdist.drawing import new_figure
from tfdist.errors import ConfigError
from tfdist.scaling import cost
from tfdist.scaling.cost import Device, Memory
from tfdist.scaling.network import ring_bytes, server_bytes
from tfdist.scaling.prediction import Model, Step
from tfdist.scaling.quantities import duration, si


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run costs. Prints as a table; what is not given is left out.

    Attributes:
        name: The model's name.
        multiply_adds: Of a forward pass of one image.
        parameters: Values of all weights.
        trainable: Values of those that are trained.
        input_bytes: Bytes of one image as the model takes it.
        batch: Images per worker and step.
        wire_bytes: Bytes of all gradients, in the type in which they are sent.
        memory: That of a replica.
        profiled_flop: FLOP of a forward pass by TensorFlow's profiler, if it was asked.
        other_memory: Its total if something else were chosen, by what.
        images: Images per epoch, if known.
        epochs: Epochs, if known.
        device: The device of each worker, if known.
        price: The price of an hour of a device, if known.
        prediction: The assumptions about steps, if a link and a time of computation are known.
        workers: The numbers of workers that steps are predicted for.
        servers: Parameter servers that the bytes are worked out for.
    """

    name: str
    multiply_adds: float
    parameters: float
    trainable: float
    input_bytes: float
    batch: int
    wire_bytes: float
    memory: Memory
    profiled_flop: float | None = None
    other_memory: Mapping[str, float] = field(default_factory=dict)
    images: float | None = None
    epochs: float | None = None
    device: Device | None = None
    price: float | None = None
    prediction: Model | None = None
    workers: Sequence[int] = ()
    servers: int = 1

    @property
    def flop_per_image(self) -> float:
        """FLOP of training on one image."""
        return cost.training_flop(self.multiply_adds)

    @property
    def flop_per_epoch(self) -> float | None:
        """FLOP of an epoch, if its length is known."""
        return None if self.images is None else self.flop_per_image * self.images

    @property
    def flop(self) -> float | None:
        """FLOP of the run, if its length is known."""
        per_epoch = self.flop_per_epoch
        return None if per_epoch is None or self.epochs is None else per_epoch * self.epochs

    @property
    def device_seconds(self) -> float | None:
        """Seconds of the run on one device, without communication, if known."""
        if self.flop is None or self.device is None:
            return None
        return self.flop / self.device.flop_per_second

    @property
    def steps(self) -> list[Step]:
        """The predicted steps; none without a prediction's assumptions."""
        if self.prediction is None:
            return []
        return self.prediction.steps(self.workers, self.batch, self.images)

    def run_price(self, step: Step) -> float | None:
        """Returns the price of the whole run on a number of workers, if known."""
        if self.price is None or self.epochs is None or step.epoch_seconds is None:
            return None
        return cost.price(step.workers * self.epochs * step.epoch_seconds, self.price)

    def to_dict(self) -> dict[str, Any]:
        """Returns all numbers, ready for JSON: FLOP, bytes, seconds, and the currency of price."""
        given = {
            name: getattr(self, name)
            for name in (
                *("name", "multiply_adds", "parameters", "trainable", "input_bytes", "batch"),
                *("profiled_flop", "images", "epochs", "price", "wire_bytes"),
            )
        }
        flop = self.flop
        seconds = self.device_seconds
        return given | {
            "device": None if self.device is None else asdict(self.device),
            "flop_per_image": self.flop_per_image,
            "flop_per_epoch": self.flop_per_epoch,
            "flop": flop,
            "pflop_per_second_days": None if flop is None else cost.pflop_per_second_days(flop),
            "flop_per_byte": cost.flop_per_byte(self.multiply_adds, self.input_bytes),
            "device_seconds": seconds,
            "device_price": self._device_price(),
            "memory": asdict(self.memory) | {"total": self.memory.total},
            "other_memory": dict(self.other_memory),
            "assumptions": None if self.prediction is None else asdict(self.prediction),
            "steps": [
                asdict(step)
                | {
                    "bytes_sent": ring_bytes(self.wire_bytes, step.workers),
                    "price": self.run_price(step),
                }
                for step in self.steps
            ],
        }

    def plot(self, path: Path) -> None:
        """Draws efficiency against the number of workers, with and without overlap, as a PNG.

        Args:
            path: The file.

        Raises:
            ConfigError: Matplotlib is not installed, or the file cannot be written.
        """
        assert self.prediction is not None
        figure = new_figure(8, 4.5)
        axes = figure.subplots()
        for name, overlap, style in (
            ("sent while computing", True, "-"),
            ("sent after computing", False, "--"),
        ):
            steps = replace(self.prediction, overlap=overlap).steps(self.workers)
            efficiencies = [100 * step.efficiency for step in steps]
            axes.plot(self.workers, efficiencies, style, marker=".", label=name)
        axes.set_xscale("log", base=2)
        ticks = sorted(set(self.workers))
        axes.set_xticks(ticks, [f"{count:,}" for count in ticks], fontsize=8)
        axes.minorticks_off()
        axes.set_ylim(0, 104)
        axes.set_xlabel("workers")
        axes.set_ylabel("efficiency, % of one worker's speed each")
        axes.set_title(f"{self.name}: {self.batch} images a worker and step", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        try:
            figure.savefig(path, dpi=120)
        except OSError as error:
            raise ConfigError(f"plot: {str(path)!r} cannot be written ({error.strerror})") from None

    def __str__(self) -> str:
        rows = [*self._work_rows(), *self._time_rows(), *self._memory_rows(), *self._wire_rows()]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {text}" for name, text in rows]
        return "\n".join([*lines, *self._step_lines()])

    def _work_rows(self) -> list[tuple[str, str]]:
        forward = f"{si(self.multiply_adds, '')} multiply-adds an image"
        if self.profiled_flop is not None:
            forward += f"; TensorFlow's profiler counts {si(self.profiled_flop, 'FLOP')}"
        rows = [
            ("model", self.name),
            ("parameters", f"{self.parameters:,.0f}, of which {self.trainable:,.0f} are trained"),
            ("forward", forward),
            (
                "operations",
                f"{si(self.flop_per_image, 'FLOP')} an image: x 2 x 3, forward and back",
            ),
        ]
        if self.flop_per_epoch is not None:
            text = f"{si(self.flop_per_epoch, 'FLOP')} an epoch of {self.images:,.0f} images"
            rows.append(("", text))
        if self.flop is not None:
            days = cost.pflop_per_second_days(self.flop)
            text = f"{si(self.flop, 'FLOP')} in {self.epochs:g} epochs: {days:.3g} PFLOP/s-days"
            rows.append(("", text))
        intensity = si(cost.flop_per_byte(self.multiply_adds, self.input_bytes), "FLOP")
        rows.append(("input", f"{intensity} a byte, of {self.input_bytes:,.0f} an image"))
        return rows

    def _time_rows(self) -> list[tuple[str, str]]:
        device = self.device
        if device is None:
            return []
        rate = si(device.flop_per_second, "FLOP/s")
        daily = si(device.delivered(cost.SECONDS_PER_DAY), "FLOP")
        share = f"{device.tflops:g} TFLOP/s at {100 * device.utilization:g} %"
        rows = [("device", f"{share}: {rate}, {daily} a day")]
        seconds = self.device_seconds
        if seconds is not None:
            text = f"{duration(seconds)} on one device"
            money = self._device_price()
            rows.append(("machine time", text if money is None else f"{text}, price {money:,.2f}"))
        return rows

    def _device_price(self) -> float | None:
        seconds = self.device_seconds
        return None if seconds is None or self.price is None else cost.price(seconds, self.price)

    def _memory_rows(self) -> list[tuple[str, str]]:
        parts = [
            f"{name.replace('_', ' ')} {si(value, 'B')}"
            for name, value in asdict(self.memory).items()
            if value
        ]
        total = si(self.memory.total, "B")
        others = ", ".join(f"{name} {si(size, 'B')}" for name, size in self.other_memory.items())
        rows = [("memory", f"{total} a replica of {self.batch} images"), ("", ", ".join(parts))]
        return [*rows, ("", f"in all with {others}")] if others else rows

    def _wire_rows(self) -> list[tuple[str, str]]:
        size = self.wire_bytes
        to_many = si(2 * size, "B")
        server = si(server_bytes(size, 1, self.servers), "B")
        count = "parameter server" if self.servers == 1 else f"of {self.servers} parameter servers"
        return [
            ("gradients", f"{si(size, 'B')} on the wire"),
            ("all-reduce", f"a worker of N sends 2(N-1)/N as much a step, up to {to_many}"),
            ("servers", f"a {count} sends and receives {server} a worker and step"),
        ]

    def _step_lines(self) -> list[str]:
        model = self.prediction
        if model is None:
            return []
        link = model.link
        way = f"{model.servers} parameter servers" if model.servers else "a ring"
        hidden = "behind the backward pass" if model.overlap else "after the backward pass"
        head = (
            f"predicted for {way}, latency {duration(link.latency)}, {si(link.bandwidth, 'B/s')}, "
            f"{hidden}, {duration(model.compute_seconds)} of computation a step"
        )
        prices = self.price is not None and self.epochs is not None and self.images is not None
        lines = [
            "",
            head,
            f"{'workers':>8}{'communication':>15}{'step':>10}{'efficiency':>12}"
            + ("epoch".rjust(11) if self.images is not None else "")
            + ("price of the run".rjust(18) if prices else ""),
        ]
        for step in self.steps:
            epoch = "" if step.epoch_seconds is None else duration(step.epoch_seconds)
            money = self.run_price(step)
            lines.append(
                f"{step.workers:>8,}{duration(step.communication):>15}{duration(step.seconds):>10}"
                f"{100 * step.efficiency:>10.1f} %"
                + (f"{epoch:>11}" if epoch else "")
                + ("" if money is None else f"{money:>18,.2f}")
            )
        return lines
