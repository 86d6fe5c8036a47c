"""Promise 6: an exported file stands by itself, and only such files are opened."""

from __future__ import annotations

import hashlib
import random

import pytest
from exported import model_of, rows_of

import trustgp
from trustgp.export import open_onnx
from trustgp.export.metadata import DIGEST, ZEROS, digest_place

onnx = pytest.importorskip("onnx", reason='onnx is not installed: pip install "trustgp[export]"')


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    model = model_of("relu")
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return trustgp.export_onnx(model, path, rows_of("relu", 3)[0]).read_bytes()


def forged(made: onnx.ModelProto) -> bytes:
    """The file of a changed model, with the digest that belongs to it."""
    kept = [entry for entry in made.metadata_props if entry.key != DIGEST]
    del made.metadata_props[:]
    made.metadata_props.extend(kept)
    entry = made.metadata_props.add()
    entry.key, entry.value = DIGEST, ZEROS
    content = made.SerializeToString()
    place = digest_place(content)
    return content[:place] + hashlib.sha256(content).hexdigest().encode() + content[place + 64 :]


def outside(location: str):
    """The first constant is in another file."""

    def change(made: onnx.ModelProto) -> None:
        tensor = made.graph.initializer[0]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
        tensor.external_data.add(key="location", value=location)

    return change


def outside_in_a_branch(made: onnx.ModelProto) -> None:
    scan = next(node for node in made.graph.node if node.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    body.initializer.append(made.graph.initializer[0])
    tensor = body.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def foreign_operator(made: onnx.ModelProto) -> None:
    made.graph.node[0].domain = "com.example"


def foreign_opset(made: onnx.ModelProto) -> None:
    made.opset_import.add(domain="com.microsoft", version=1)


def own_function(made: onnx.ModelProto) -> None:
    made.functions.add(name="f", domain="")


def future_format(made: onnx.ModelProto) -> None:
    next(e for e in made.metadata_props if e.key == "trustgp.format").value = "99"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (outside("weights.bin"), "is in another file"),
        (outside("../../etc/passwd"), r"is in another file \(\.\./\.\./etc/passwd\)"),
        (outside_in_a_branch, "is in another file"),
        (foreign_operator, "operators of .*com.example"),
        (foreign_opset, "operators of .*com.microsoft"),
        (own_function, "operators of its own"),
        (future_format, "format 99"),
    ],
)
def test_files_that_reach_beyond_themselves_are_refused_even_with_a_right_digest(
    change, reason, content, tmp_path
):
    made = onnx.load_model_from_string(content)
    change(made)
    (tmp_path / "model.onnx").write_bytes(forged(made))
    with pytest.raises(trustgp.ArtifactError, match=reason):
        open_onnx(tmp_path / "model.onnx")


def test_the_same_file_forged_without_a_change_is_opened(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(forged(onnx.load_model_from_string(content)))
    assert open_onnx(tmp_path / "model.onnx").metadata["outputs"] == "pseudo"


def test_a_link_is_refused(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    (tmp_path / "link.onnx").symlink_to(tmp_path / "model.onnx")
    with pytest.raises(trustgp.ArtifactError, match="symbolic link"):
        open_onnx(tmp_path / "link.onnx")


def test_a_file_of_another_program_is_refused(tmp_path):
    value = onnx.helper.make_tensor_value_info("x", 1, ["n"])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value], [onnx.helper.make_tensor_value_info("y", 1, ["n"])])
    (tmp_path / "other.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(trustgp.ArtifactError, match="not written by trustgp"):
        open_onnx(tmp_path / "other.onnx")


def test_one_flipped_bit_anywhere_is_refused(content, tmp_path):
    draw = random.Random(0)
    path = tmp_path / "model.onnx"
    for place in draw.sample(range(len(content)), 300):
        damaged = bytearray(content)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(trustgp.ArtifactError):
            open_onnx(path)


def test_a_file_cut_anywhere_is_refused(content, tmp_path):
    path = tmp_path / "model.onnx"
    for end in random.Random(1).sample(range(len(content)), 100):
        path.write_bytes(content[:end])
        with pytest.raises(trustgp.ArtifactError):
            open_onnx(path)


def test_what_is_exported_needs_no_other_file(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = onnx.load_model_from_string(content)
    assert not any(tensor.external_data for tensor in made.graph.initializer)
    (tmp_path / "model.onnx").write_bytes(content)
    assert open_onnx("model.onnx")(rows_of("relu", 2)[0])["valid"].all()
