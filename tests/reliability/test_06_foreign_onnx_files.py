"""Promise 6: an exported file is self-contained, and only such files are opened."""

import random

import pytest
from exported import model_of, rows_of
from many import each
from reliability.forgeries import sealed_onnx

import trustgp
from trustgp.export import open_onnx

onnx = pytest.importorskip("onnx", reason='onnx is not installed: pip install "trustgp[export]"')


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return trustgp.export_onnx(model_of("relu"), path, rows_of("relu", 3)[0]).read_bytes()


def outside(location: str, *, branch: bool = False):
    """The first constant, or one in a branch, is in another file."""

    def change(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[0]
        if branch:
            loop = next(node for node in model.graph.node if node.op_type == "Loop")
            body = next(a.g for a in loop.attribute if a.name == "body")
            body.initializer.append(tensor)
            tensor = body.initializer[0]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
        tensor.external_data.add(key="location", value=location)

    return change


def foreign_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.example"


def future_format(model: onnx.ModelProto) -> None:
    next(e for e in model.metadata_props if e.key == "trustgp.format").value = "99"


@each(
    ("change", "reason"),
    [
        (outside("weights.bin"), "is in another file"),
        (outside("../../etc/passwd"), r"is in another file \(\.\./\.\./etc/passwd\)"),
        (outside("weights.bin", branch=True), "is in another file"),
        (foreign_operator, "operators of .*com.example"),
        (lambda m: m.opset_import.add(domain="com.microsoft", version=1), "operators of .*com.microsoft"),
        (lambda m: m.functions.add(name="f", domain=""), "operators of its own"),
        (future_format, "format 99"),
    ],
)
def test_files_that_need_others_are_refused_even_with_a_valid_digest(change, reason, content, tmp_path):
    model = onnx.load_model_from_string(content)
    change(model)
    (tmp_path / "model.onnx").write_bytes(sealed_onnx(model.SerializeToString()))
    with pytest.raises(trustgp.ArtifactError, match=reason):
        open_onnx(tmp_path / "model.onnx")


def test_a_link_and_a_file_of_another_program_are_refused(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    (tmp_path / "link.onnx").symlink_to(tmp_path / "model.onnx")
    with pytest.raises(trustgp.ArtifactError, match="symbolic link"):
        open_onnx(tmp_path / "link.onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    (tmp_path / "other.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(trustgp.ArtifactError, match="not written by trustgp"):
        open_onnx(tmp_path / "other.onnx")


def test_a_flipped_bit_or_a_truncated_file_is_refused(content, tmp_path):
    draw, path = random.Random(0), tmp_path / "model.onnx"
    for place in draw.sample(range(len(content)), 150):
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        for damaged in (flipped, content[:place]):
            path.write_bytes(damaged)
            with pytest.raises(trustgp.ArtifactError):
                open_onnx(path)


def test_an_unchanged_file_with_a_new_digest_is_opened(content, tmp_path):
    again = onnx.load_model_from_string(content).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(sealed_onnx(again))
    assert open_onnx(tmp_path / "model.onnx")(rows_of("relu", 2)[0])["valid"].all()
