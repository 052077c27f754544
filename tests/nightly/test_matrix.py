"""The matrix file: its cells, and one sentence for every mistake."""

from __future__ import annotations

import pytest

from parity.bundled import tiny
from parity.errors import UsageError
from parity.gates import GATES
from parity.nightly.expand import cells, chosen
from parity.nightly.matrix import read_matrix
from parity.nightly.process import GoldenJob

TWO = """
k = [2, 4]
tp = [1, 2]
[cases.chat]
target = "target"
prompts = "../chat.jsonl"
max_new_tokens = 8
[families.peagle]
drafter = "drafter"
[devices]
numpy = "numpy"
mine = "my.module:load,moe=gathered"
[policies.loose]
bounds = "pcc"
[run]
gates = ["taps", "stages"]
"""


@pytest.fixture
def expand(tmp_path):
    """The cells of a matrix with these rows behind it."""

    def read(text: str = TWO, rows: str = ""):
        (tmp_path / "m.toml").write_text(text.replace("[cases.chat]", f"{rows}\n[cases.chat]", 1) if rows else text)
        return cells(read_matrix(tmp_path / "m.toml"))

    return read


def test_cells_are_the_product_of_the_axes(expand, tmp_path):
    found = expand()
    assert len(found) == len({cell.name for cell in found}) == 2 * 2 * 2
    one = next(cell for cell in found if cell.name == "chat.mine.peagle.k4.tp2.loose")
    assert one.device == "my.module:load,moe=gathered,tp=2" and one.bounds == "pcc" and one.gates == ("stages", "taps")
    assert one.target == str(tmp_path / "target") and one.prompts == str(tmp_path.parent / "chat.jsonl")
    assert {cell.device for cell in found if cell.axes.tp == 1} == {"numpy", "my.module:load,moe=gathered"}


def test_a_schedule_is_for_the_cells_of_its_largest_k(expand):
    changing = TWO.replace("max_new_tokens = 8", "max_new_tokens = 8\nschedule = [4, 0, 2]")
    (one, *_) = found = expand(changing, "[[only]]\nk = 4")
    assert {cell.schedule for cell in found} == {(4, 0, 2)} and GoldenJob.of(one).schedule == (4, 0, 2)
    with pytest.raises(UsageError, match=r"chat.numpy.peagle.k2.tp1.loose: the largest K of cases.chat.schedule is 4"):
        expand(changing)
    with pytest.raises(UsageError, match="schedule is of one K"):
        expand(changing.replace("[4, 0, 2]", "[4, 4]"))


def test_a_case_that_samples_is_judged_by_the_gates_that_take_such_a_golden(expand):
    drawn = TWO.replace("max_new_tokens = 8", 'max_new_tokens = 8\nsample = "temperature=1"\ngates = ["stages"]')
    (one, *_) = expand(drawn)
    assert one.sample == GoldenJob.of(one).sample == "temperature=1.0,top_k=0,top_p=1.0,min_p=0.0,rule=residual"
    assert not one.diagnose and one.gates == ("stages",)
    with pytest.raises(UsageError, match=r"peagle\.k2\.tp1\.loose samples, and gate taps is of greedy decoding"):
        expand(drawn.replace('\ngates = ["stages"]', ""))
    with pytest.raises(UsageError, match='samples, and kind = "bench" is of greedy decoding'):
        expand(drawn.replace('gates = ["stages"]', 'gates = ["stages"]\nkind = "bench"'))
    with pytest.raises(UsageError, match=r"cases\.chat\.sample: sampling 'hot': 'hot' is no setting with a value"):
        expand(drawn.replace("temperature=1", "hot"))


def test_the_matrix_of_batches_has_a_cell_of_each_family_engine_and_number_of_lanes_greedy_and_drawn():
    found = cells(read_matrix(tiny("batches.toml")))
    assert len(found) == 5 * 2 * 3 * 2 and {bool(cell.sample) for cell in found} == {False, True}
    asked = {(gate, cell.axes.family) for cell in found for gate in cell.gates if cell.axes.device == "numpy"}
    assert asked >= {(gate, cell.axes.family) for cell in found for gate in ("lifecycle", "sampling")}


def test_the_matrix_of_families_reads():
    found = cells(read_matrix(tiny("families.toml")))
    assert {cell.axes.family for cell in found} == {"peagle", "eagle3", "draft-model", "ngram", "dflash"}
    assert {cell.axes.device for cell in found} == {"numpy", "xla", "nkipy"} and any(cell.schedule for cell in found)


def test_only_exclude_and_include(expand):
    rows = """
        [[only]]
        device = "num*"
        [[exclude]]
        k = 4
        tp = [2, 4]
        [[include]]
        tp = 2
        gates = ["lossless"]
        [[include]]
        device = "mine"
        k = 3
        tp = 1
        speed_tokens = 8
    """
    found = {cell.name: cell for cell in expand(rows=rows)}
    assert list(found) == [
        "chat.numpy.peagle.k2.tp1.loose",
        "chat.numpy.peagle.k2.tp2.loose",
        "chat.numpy.peagle.k4.tp1.loose",
        "chat.mine.peagle.k3.tp1.loose",
    ]
    assert found["chat.numpy.peagle.k2.tp2.loose"].gates == ("lossless",)
    assert found["chat.mine.peagle.k3.tp1.loose"].speed_tokens == 8 and found[
        "chat.numpy.peagle.k2.tp1.loose"
    ].gates == ("stages", "taps")


def test_a_case_may_bring_its_drafter_its_golden_and_its_settings(expand, tmp_path):
    text = TWO.replace(
        'prompts = "../chat.jsonl"', 'drafter = "own"\ngolden = "s3://goldens/{family}-k{k}"\nhistories = 7'
    )
    one = expand(text)[0]
    assert (
        one.drafter == str(tmp_path / "own")
        and one.golden == "s3://goldens/peagle-k2"
        and one.prompts == ""
        and one.histories == 7
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("max_new_tokens = 8", "max_new_tokens = 8\nmax_tokens = 8"), "cases.chat.max_tokens: unknown key"),
        (("[run]", "[run]\nthreads = 1"), "run.threads: unknown key"),
        (("[devices]", "path = 'x'\n[devices]"), "families.peagle.path: unknown key"),
        (("k = [2, 4]", "k = []"), "k: is empty"),
        (("k = [2, 4]", "k = [2, 2]"), "k names 2 twice: two cells with one name"),
        (("k = [2, 4]", "k = [0]"), "k.0:"),
        (("k = [2, 4]", "path = 'elsewhere'\nk = [2]"), "path: unknown key"),
        (("k = [2, 4]", ""), "k: is missing"),
        (('target = "target"', ""), "cases.chat.target: is missing"),
        (('prompts = "../chat.jsonl"', ""), "names neither prompts nor a golden"),
        (('prompts = "../chat.jsonl"', 'golden = "g"'), "one golden for several: say where {k} goes"),
        (("mine = ", "'my device' = "), "does not fit a file name"),
        (("mine = ", "'../up' = "), "does not fit a file name"),
        (("mine = ", "Numpy = "), "one name where files know no case"),
        (('numpy = "numpy"', 'numpy = "numpy,tp=2"'), "tp is an axis"),
        (('drafter = "drafter"', 'drafter = "drafter"\nkind = "x"'), "families.peagle.kind: unknown key"),
        (("[families.peagle]\ndrafter", "[families.peagle]\n# drafter"), "families.peagle.drafter: is missing"),
        (("max_new_tokens = 8", "max_new_tokens = 8\nfamilies = ['eagle3']"), "there is no [families.eagle3]"),
        (("max_new_tokens = 8", "max_new_tokens = 8\nfamilies = ['peagle']\ndrafter = 'd'"), "a drafter and families"),
        (('[families.peagle]\ndrafter = "drafter"', ""), "names no drafter"),
        (('bounds = "pcc"', 'bounds = "nobody.toml"'), "neither a file nor one of"),
        (('bounds = "pcc"', 'precision = "float16"'), "policies.loose.precision"),
        (('"taps", "stages"', '"taps", "stage"'), "stage is no gate"),
        (('"taps", "stages"', ""), "run.gates: is empty"),
        (("[cases.chat]", "[[exclude]]\ndevice = 'xla'\n[cases.chat]"), "exclude.0 matches no cell"),
        (("[cases.chat]", "[[only]]\nk = 7\n[cases.chat]"), "only.0 matches no cell"),
        (("[cases.chat]", "[[exclude]]\n[cases.chat]"), "exclude.0 names no axis"),
        (("[cases.chat]", "[[exclude]]\ncase = '*'\n[cases.chat]"), "no cell is left"),
        (("[cases.chat]", "[[include]]\nk = 2\n[cases.chat]"), "two cells with one name"),
        (("[cases.chat]", "[[include]]\nk = 3\n[cases.chat]"), "it names no device"),
        (
            ("[cases.chat]", "[[include]]\nk = 3\ntp = 1\ndevice = 'nmupy'\n[cases.chat]"),
            "'nmupy' is none of numpy, mine",
        ),
        (("k = [2, 4]", "k = [2"), "is not TOML"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence(change, words, expand, parity, tmp_path):
    assert TWO.count(change[0]) == 1
    with pytest.raises(UsageError, match=r"m\.toml|neither") as error:
        expand(TWO.replace(*change))
    assert words in str(error.value) and "\n" not in str(error.value)
    ended = parity("nightly", tmp_path / "m.toml", "--dry-run")
    assert ended.code == 2 and ended.err.count("\n") == 1 and words in ended.err


def test_only_of_cells_by_glob(expand):
    found = expand()
    assert {cell.axes.k for cell in chosen(found, ["*.k2.*"])} == {2} and chosen(found, []) == found
    with pytest.raises(UsageError, match="no cell has such a name"):
        chosen(found, ["*.k2.*", "*.k3.*"])


def test_the_shipped_matrix_has_thirteen_cells_and_makes_six_goldens(parity, tiny):
    ended = parity("nightly", "--dry-run")
    assert ended.code == 0 and ended.last == "13 cells" and ended.out.count("--device xla") == 4
    planned = cells(read_matrix(tiny / "nightly.toml"))
    assert len({GoldenJob.of(cell) for cell in planned}) == 6
    assert {gate for cell in planned for gate in cell.gates} == set(GATES), "every gate is asked of some cell"
    assert not list(parity.home.iterdir())


def test_a_dry_run_names_one_cell(parity):
    ended = parity("nightly", "--dry-run", "--only", "short.*.tp2.*", "--only", "raw.*")
    assert ended.last == "3 cells" and "--device xla,tp=2" in ended.out
