"""Frameworks on the default device: finding them, their tensors, adopted ones (rules B4, F4, W2, X5)."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from frameworks import backend, host, require

import slotline as sl
from slotline.core.field import DTYPES

Make = Callable[..., Any]
OTHERS = ("torch", "paddle")
LAYOUT = sl.target_layout(sl.BatchConfig(max_num_seqs=2, max_model_len=8, vocab_size=9))


def module(name: str) -> Any:
    """The framework, or a skip."""
    require(name)
    backend(name)  # imports it without its warnings
    return importlib.import_module(name)


class TestFinding:
    @pytest.mark.parametrize("name", OTHERS)
    def test_b4_a_missing_framework_names_its_extra(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, name, None)  # the import statement then says "not found"
        with pytest.raises(
            sl.BackendUnavailable, match=rf"{name} is not installed; pip install 'slotline\[{name}\]'"
        ) as e:
            sl.load_backend("cpu", framework=name)
        assert isinstance(e.value, ImportError)
        assert isinstance(e.value.__cause__, ModuleNotFoundError)

    @pytest.mark.parametrize(
        ("name", "version", "oldest"), [("torch", "2.3.1+cu121", "2.4"), ("paddle", "2.6.2", "3.0")]
    )
    def test_x5_one_that_is_too_old_says_so(
        self, name: str, version: str, oldest: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = ModuleType(name)
        old.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, old)
        with pytest.raises(sl.BackendUnavailable) as caught:
            sl.load_backend("cpu", framework=name)
        assert f"{name} {version} is too old, needed: {oldest} or newer; pip install -U 'slotline[{name}]'" in str(
            caught.value
        )

    @pytest.mark.parametrize("name", OTHERS)
    @pytest.mark.parametrize("line", ["raise ImportError('libmine.so.1')", "import a_module_that_nobody_has"])
    def test_x2_one_that_is_broken_keeps_its_error(self, name: str, line: str, tmp_path: Path) -> None:
        (tmp_path / f"{name}.py").write_text(line)
        script = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import slotline as sl
try:
    sl.load_backend("cpu", framework={name!r})
except sl.BackendUnavailable as error:
    print(error, type(error.__cause__).__name__)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert f"{name} is installed but cannot be imported: " in done.stdout
        assert "libmine.so.1 ImportError" in done.stdout or "'a_module_that_nobody_has' Module" in done.stdout

    def test_b2_a_framework_is_imported_only_when_it_is_asked_for(self) -> None:
        script = "import sys, slotline; slotline.load_backend('cpu'); print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert not set(OTHERS) & set(done.stdout.split())

    def test_b3_a_probe_tells_the_versions(self, framework: str, cpu: sl.Backend) -> None:
        expected = {"numpy": np.__version__, "slotline": sl.__version__}
        expected[framework] = str(module(framework).__version__)
        assert cpu.probe(framework=framework).versions == expected
        assert cpu.framework == framework

    def test_c_the_frameworks_are_listed(self) -> None:
        with pytest.raises(sl.ConfigError, match=r"torc.*numpy, torch, paddle.*did you mean 'torch'"):
            sl.load_backend("cpu", framework="torc")


class TestTensors:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_x5_every_dtype_is_there_or_refused_in_words(self, dtype: str, cpu: sl.Backend, framework: str) -> None:
        if dtype == "bfloat16":
            pytest.importorskip("ml_dtypes")
        layout = LAYOUT.extend(sl.Field("mine", ("max_num_seqs", 3), dtype, 1))
        if framework == "paddle" and dtype in ("uint16", "uint32", "uint64"):
            with pytest.raises(sl.LayoutError, match=f"field 'mine': paddle has no {dtype}; choose int32 or int64"):
                sl.SlotBatch(layout, cpu)
            return
        mine = sl.SlotBatch(layout, cpu)["mine"]
        assert type(mine).__module__.split(".")[0] == framework
        assert (cpu.inspect(mine).dtype, cpu.inspect(mine).shape) == (dtype, (2, 3))
        assert cpu.read(mine).astype(float).tolist() == [[1, 1, 1], [1, 1, 1]]

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1), (2, 3)])
    def test_w8_a_tensor_is_seen_as_it_is(self, shape: tuple[int, ...], cpu: sl.Backend, tensor: Make) -> None:
        plain = np.zeros(shape, np.int32)
        made = tensor(plain)
        info = cpu.inspect(made)
        assert (info.shape, info.dtype, info.place) == (shape, "int32", "cpu")
        if plain.size:
            assert info.strides == plain.strides
        sl.async_set_value(made, 7)
        assert host(made).tolist() == np.full(shape, 7).tolist()
        assert cpu.read(made).tolist() == np.full(shape, 7).tolist()

    def test_w8_a_view_has_its_own_strides_and_place(self, cpu: sl.Backend, tensor: Make) -> None:
        whole = tensor(np.arange(24, dtype=np.int16).reshape(4, 6))
        view, first = cpu.inspect(whole[1:, 1::2]), cpu.inspect(whole)
        assert (view.shape, view.strides, view.pointer - first.pointer) == ((3, 3), (12, 4), 14)
        assert cpu.inspect(whole.T).strides == (2, 12)
        assert cpu.read(whole.T[::2]).tolist() == host(whole).T[::2].tolist()

    def test_w4_an_upload_is_a_copy(self, cpu: sl.Backend) -> None:
        array = np.arange(6).reshape(2, 3).T
        uploaded = cpu.upload({"x": array})["x"]
        expected = array.copy()
        array[...] = 0
        assert cpu.read(uploaded).tolist() == expected.tolist()

    def test_w2_tensors_of_another_framework_are_refused_by_name(self, cpu: sl.Backend, framework: str) -> None:
        for name in {"numpy", *OTHERS} - {framework}:
            other = module(name).zeros([2])
            with pytest.raises(TypeError, match=rf"{name}\.\w+ is not a tensor of backend 'cpu' \({framework}\)"):
                cpu.async_set_value(other, 1)
            with pytest.raises(TypeError, match=rf"{name}\.\w+ is not a tensor of backend"):
                cpu.read(other)
            target = cpu.empty([("x", (2,), "float32")])["x"]
            if name != "numpy":  # NumPy's arrays are sources for every framework
                with pytest.raises(TypeError, match=rf"a source is {name}\.\w+, allowed: .* {framework} tensors"):
                    cpu.async_set_value(target, other)
            else:
                cpu.async_set_value(target, other)
                assert cpu.read(target).tolist() == [0, 0]

    def test_w2_several_frameworks_in_one_process(self, tensor: Make, framework: str) -> None:
        for name in {"numpy", *OTHERS} - {framework}:
            module(name)
        target = tensor(np.zeros(2, np.int64))
        sl.async_set_value(target, tensor([1, 2], "int32"))
        assert host(target).tolist() == [1, 2]


class TestTorch:
    @pytest.fixture
    def torch(self) -> Any:
        return module("torch")

    def test_w1_odd_tensors_are_refused_in_words(self, torch: Any) -> None:
        cpu = backend("torch")
        for odd, words in (
            (torch.zeros(2, device="meta"), r"a tensor on meta; needed: one on the cpu, tensor\.cpu\(\)"),
            (torch.zeros(2).to_sparse(), "a sparse or nested tensor"),
            (torch.zeros(2, dtype=torch.complex64), "a tensor of torch.complex64; allowed: bool, int8"),
            (torch.imag(torch.zeros(2, dtype=torch.complex64).conj()), r"negative.*resolve_neg\(\)"),
        ):
            for use in (cpu.inspect, cpu.read, lambda t: cpu.async_set_value(t, 1)):
                with pytest.raises(TypeError, match=words):
                    use(odd)
            with pytest.raises(TypeError, match=words):
                cpu.async_set_value(torch.zeros(2), odd)

    def test_w1_a_tensor_with_gradients_is_a_source_and_no_destination(self, torch: Any) -> None:
        cpu, graph = backend("torch"), torch.ones(2, requires_grad=True)
        for refused in (graph, graph * 2, torch.nn.Parameter(torch.zeros(2))):
            with pytest.raises(ValueError, match=r"requires grad; write into tensor\.detach\(\)"):
                cpu.async_set_value(refused, 1)
        target = torch.zeros(2)
        cpu.async_set_value(target, graph * 2)
        assert target.tolist() == [2, 2]
        cpu.async_set_value(graph.detach(), 5)
        assert graph.tolist() == [5, 5]

    def test_b11_the_engine_s_defaults_do_not_reach_the_step_functions(self, torch: Any) -> None:
        def digest(batch: sl.SlotBatch) -> str:
            sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [1, 2]), 0, 2, [0])])
            step = sl.prepare_step(batch)
            sl.commit_step(batch, step, np.full((2, 1), 3), np.ones(2, np.int32))
            batch.swap(0, 1)
            return batch.digest()

        expected = digest(sl.SlotBatch(LAYOUT, backend("numpy")))
        cpu = backend("torch")
        with torch.inference_mode(), torch.device("meta"):
            batch = sl.SlotBatch(LAYOUT, cpu)
            adopting = sl.SlotBatch(LAYOUT, cpu, tensors={"step_idx": torch.zeros(2, dtype=torch.int32, device="cpu")})
        assert digest(batch) == expected  # made inside, used outside
        assert digest(adopting) == expected
        with torch.inference_mode(), torch.device("meta"):
            assert digest(sl.SlotBatch(LAYOUT, cpu)) == expected

    def test_w1_inference_tensors_and_parameters_are_plain_memory(self, torch: Any) -> None:
        with torch.inference_mode():
            target = torch.zeros(2)
        backend("torch").async_set_value(target, [1, 2])
        assert target.tolist() == [1, 2]
        frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        backend("torch").async_set_value(frozen, [1, 2])
        assert frozen.tolist() == [1, 2]


class TestPaddle:
    @pytest.fixture
    def paddle(self) -> Any:
        return module("paddle")

    def test_w1_odd_tensors_are_refused_in_words(self, paddle: Any) -> None:
        cpu = backend("paddle")
        for odd, words in (
            (paddle.sparse.sparse_coo_tensor([[0]], [1.0], [2]), "a sparse tensor"),
            (paddle.zeros([2], "complex64"), "a tensor of paddle.complex64; allowed: bool, int8"),
        ):
            for use in (cpu.inspect, lambda t: cpu.async_set_value(t, 1)):
                with pytest.raises(TypeError, match=words):
                    use(odd)

    def test_w1_a_tensor_with_gradients_is_a_source_and_no_destination(self, paddle: Any) -> None:
        cpu, graph = backend("paddle"), paddle.ones([2])
        graph.stop_gradient = False
        for refused in (graph, graph * 2):
            with pytest.raises(ValueError, match=r"has gradients; write into tensor\.detach\(\)"):
                cpu.async_set_value(refused, 1)
        target = paddle.zeros([2])
        cpu.async_set_value(target, graph * 2)
        assert target.tolist() == [2, 2]
        cpu.async_set_value(graph.detach(), 5)
        assert graph.tolist() == [5, 5]

    def test_b11_the_engine_s_device_is_put_back(self, paddle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = ["gpu:1"]
        monkeypatch.setattr(paddle, "get_device", lambda: chosen[-1])
        monkeypatch.setattr(paddle, "set_device", chosen.append)
        cpu = backend("paddle")
        cpu.launch(lambda _reads, _writes: chosen.append(f"run on {chosen[-1]}"), {}, {})
        assert chosen == ["gpu:1", "cpu", "run on cpu", "gpu:1"]
