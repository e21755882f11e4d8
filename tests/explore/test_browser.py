"""The pages in a real browser: clicks, keys and sliders, with the network off."""

import pytest
import tiny
import tokenizers
import torch
import torch.nn.functional as F
from browser import INVISIBLE

from qsft.explore import target_grid
from qsft.explore.alignment import measure_alignment
from qsft.explore.alignment_report import alignment_page
from qsft.explore.target_explorer import targets_page
from qsft.explore.token_xray import tokens_page, xray
from qsft.explore.training_curves import Run, run_page
from qsft.losses.reference import target_loss
from qsft.page import write_page
from qsft.targets.registry import make_target
from qsft.targets.target import LossTarget
from qsft.targets.view import TokenView
from qsft.teacher.capture.capture import build_cache

pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

pytestmark = pytest.mark.browser
EVIL = "<script>window.hacked=1</script>"


def focal(logits, labels):
    logp = F.log_softmax(logits, dim=-1).gather(-1, labels[:, None])[:, 0]
    return -((1 - logp.exp()) ** 2) * logp


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def targets(folder):
    return write_page(
        folder / "targets.html", targets_page([LossTarget(focal), "target_sft", "sft", "kd"], named=False)
    )


@pytest.fixture(scope="module")
def seen(student, tokenizer, documents, cache):
    return xray(student, tokenizer, documents, make_target("target_sft"), cache)


@pytest.fixture(scope="module")
def tokens(folder, seen):
    return write_page(folder / "tokens.html", tokens_page(seen))


@pytest.fixture(scope="module")
def alignment(folder, student, tokenizer, documents, cache):
    data = measure_alignment(student, tokenizer, documents, cache)
    return write_page(folder / "alignment.html", alignment_page(data))


@pytest.fixture(scope="module")
def run(folder):
    lines = tuple({"step": s, "loss": 1 / s, "gamma": 0.5, "gamma_q25": 0.1, "gamma_q75": 0.8} for s in range(1, 50))
    return write_page(folder / "run.html", run_page([Run("a <b>", lines), Run("b", lines[::2])]))


def numbers(browser, panel="first"):
    texts = {key: browser.text(f"#{panel} [data-value={key}]") for key in ("loss", "gamma", "q", "gradient")}
    return {key: float(text) for key, text in texts.items()}


def expected(target, p_y, t_y):
    """The four numbers, by the reference loss and autograd."""
    p, t = (torch.tensor([value], dtype=torch.float64) for value in (p_y, t_y))
    logits = target_grid.student_probs(p).log().requires_grad_()
    labels = torch.tensor([0])
    teacher = target_grid.kept_tokens(target_grid.teacher_probs(t))
    loss = target_loss(logits, labels, target, teacher)
    (gradient,) = torch.autograd.grad(loss, logits)
    q = target(TokenView.of(logits.detach(), labels, teacher))
    q_y = q.dense(target_grid.student_probs(p))[0, 0].item()
    return {"loss": loss.item(), "gamma": q.gamma.item(), "q": q_y, "gradient": gradient[0, 0].item()}


def test_sliders_show_what_python_computes(browser, targets):
    browser.open(targets)
    Select(browser.one("#first-target")).select_by_visible_text("target_sft")
    for move_p, move_t, move_eta in ((0, 0, 0), (9, 0, 0), (-4, -5, 3), (6, 4, -8)):
        browser.slide("#situation [data-axis=p]", move_p)
        browser.slide("#situation [data-axis=teacher]", move_t)
        browser.slide("#first [data-axis=eta]", move_eta)
        p, t = (float(browser.text(f"#situation .slider:nth-child({n}) output")) for n in (1, 2))
        eta = float(browser.text("#first output"))
        assert numbers(browser) == pytest.approx(expected(make_target("target_sft", eta=eta), p, t), abs=6e-4)
        assert numbers(browser, "second") == pytest.approx(expected(make_target("sft"), p, t), abs=6e-4)


def test_a_users_loss_is_shown_first_and_curves_follow_the_target(browser, targets):
    browser.open(targets)
    chosen = Select(browser.one("#first-target")).first_selected_option.text
    assert "focal" in chosen
    assert numbers(browser) == pytest.approx(expected(LossTarget(focal), 0.3, 0.75), abs=6e-4)
    drawn = browser.js("return document.querySelectorAll('#curves .plot')[0].data[0].y")
    logits = target_grid.student_probs(torch.tensor(target_grid.P_GRID, dtype=torch.float64)).log()
    losses = focal(logits, torch.zeros(len(logits), dtype=torch.int64))
    assert drawn == pytest.approx(losses.tolist(), abs=1e-5)


def test_an_invalid_combination_shows_its_error(browser, targets):
    browser.open(targets)
    Select(browser.one("#second-target")).select_by_visible_text("kd")
    Select(browser.one("#second [data-axis=tail]")).select_by_visible_text("ghost")
    assert not browser.one("#second .notice").is_displayed()
    browser.slide("#second [data-axis=temperature]", 1)
    assert 'needs tail="drop"' in browser.text("#second .notice")
    assert browser.text("#second [data-value=loss]") == "–"
    Select(browser.one("#second-target")).select_by_visible_text("no second target")
    assert browser.all("#second .plot") == []


def test_hovering_shows_the_alternatives_of_that_token(browser, tokens, seen):
    browser.open(tokens)
    rows = [row for document in seen["documents"] for row in document["tokens"]]
    for number in (0, 7, 20):
        browser.hover(browser.all(".tok")[number])
        shown = [line.text for line in browser.all("#detail tbody th")]
        token = rows[number]
        ids = [token["label"], *(alternative["token"] for alternative in token["alternatives"])]
        assert sorted(shown) == sorted(seen["vocabulary"][str(i)] for i in ids)
        label = [cell.text for cell in browser.all("#detail tr.label td")]
        for text, value in zip(label, (token["p"], token["t"], token["q"])):
            assert text == ("< 0.001" if 0 < value < 5e-4 else f"{value:.3f}")


def test_the_filter_shows_as_many_tokens_as_the_json_counts(browser, tokens, seen):
    browser.open(tokens)
    for kind, count in seen["quadrants"].items():
        button = browser.one(f"#filter [data-value={kind}]")
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert len(browser.all(".tok:not(.dim)")) == count
        assert f"{count:,}" in button.text
    browser.one("#filter [data-value=all]").click()
    assert len(browser.all(".tok:not(.dim)")) == seen["label_tokens"]


def test_colors_follow_the_switch(browser, tokens, seen):
    browser.open(tokens)
    rows = [row for document in seen["documents"] for row in document["tokens"]]
    for key in ("p", "t", "q"):
        browser.one(f"#color [data-value={key}]").click()
        drawn = browser.js("return [...document.querySelectorAll('.tok')].map(e => +e.style.getPropertyValue('--v'))")
        assert drawn == pytest.approx([min(1.0, row[key]) for row in rows])


def test_search_hides_other_documents_and_marks_the_tokens(browser, tokens, seen):
    browser.open(tokens)
    browser.press(browser.one("#search"), "window.hacked")
    found = [d for d in seen["documents"] if any("window.hacked" in row["text"] for row in d["tokens"])]
    assert len([doc for doc in browser.all(".doc") if doc.is_displayed()]) == len(found)
    assert len(browser.all(".tok.hit")) == sum("window.hacked" in row["text"] for d in found for row in d["tokens"])


def test_the_keyboard_is_enough(browser, tokens, seen):
    browser.open(tokens)
    rows = seen["documents"][0]["tokens"]
    browser.press(browser.one(".tok"), Keys.ARROW_RIGHT)
    browser.press(browser.driver.switch_to.active_element, Keys.ARROW_RIGHT)
    assert browser.text("#detail h2") == seen["vocabulary"][str(rows[2]["label"])]
    browser.press(browser.driver.switch_to.active_element, Keys.ESCAPE)
    assert browser.text("#detail") == ""


def test_tokens_that_are_html_are_shown_and_not_run(browser, tokens):
    browser.open(tokens)
    evil = next(element for element in browser.all(".tok") if EVIL in element.text)
    browser.hover(evil)
    assert EVIL in browser.text("#detail h2")
    browser.one(".doc details summary").click()
    assert EVIL in browser.text(".doc details table")
    assert browser.js("return window.hacked") is None
    assert browser.all(".doc img, .doc script, #detail script") == []


def test_alignment_and_run_are_drawn(browser, alignment, run):
    browser.open(alignment)
    assert len(browser.all(".js-plotly-plot .main-svg")) >= 2
    assert "In words" in browser.text("main")
    browser.open(run)
    assert len(browser.all(".js-plotly-plot")) == 2
    assert "a <b>" in browser.text(".key")


def test_the_threshold_moves_shares_and_lines(browser, alignment):
    browser.open(alignment)
    before = browser.text("[data-kind=agree]")
    browser.press(browser.one("#high"), Keys.ARROW_RIGHT * 8)
    assert browser.text("#high-value") == "0.9"
    assert float(browser.text("[data-kind=agree]").split()[0]) <= float(before.split()[0])
    assert sum(float(tile.text.split()[0]) for tile in browser.all("[data-kind]")) == pytest.approx(100, abs=0.3)
    assert browser.js("return document.querySelector('.plot').layout.shapes[0].x0") == 0.9


@pytest.mark.parametrize("name", ["targets", "tokens", "alignment", "run"])
@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        (400, True),
        pytest.param(1280, True, marks=pytest.mark.slow),
        pytest.param(400, False, marks=pytest.mark.slow),
    ],
)
def test_every_page_fits_its_window_and_asks_the_network_for_nothing(browser, request, name, width, dark):
    path = request.getfixturevalue(name)
    assert path.stat().st_size < 6e6
    browser.open(path, width=width, dark=dark)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.js("return performance.getEntriesByType('resource').map(e => e.name)") == []
    background = browser.js("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
    assert browser.js("return document.documentElement.lang") == "en"
    assert browser.js(NAMELESS) == []
    for svg in browser.all(".plot svg.main-svg"):
        assert svg.size["width"] <= width


# Controls without a name that a screen reader could say, and figures without a description.
NAMELESS = """
return [...document.querySelectorAll('input, select, button, [role=img]')].filter((e) =>
  !e.getAttribute('aria-label') && !e.labels?.length && !e.textContent.trim()).map((e) => e.outerHTML.slice(0, 80))
"""


def test_the_theme_can_be_chosen(browser, alignment):
    browser.open(alignment)
    button = browser.one("#theme")
    names = []
    for _ in range(3):
        button.click()
        names.append((button.get_attribute("aria-label"), browser.js("return document.documentElement.dataset.theme")))
    assert names == [
        ("Color theme: light", "light"),
        ("Color theme: dark", "dark"),
        ("Color theme: automatic", None),
    ]
    assert browser.js("return getSelection().selectAllChildren(document.body), getSelection().toString().length") > 500


@pytest.mark.parametrize("kind", ["tokens", "alignment", "run"])
def test_bidirectional_and_zero_width_tokens_are_written_out(browser, folder, student, kind):
    evil = f"no{INVISIBLE}on"
    tokenizer = tiny.make_tokenizer()
    words = tokenizer.get_vocab()
    backend = tokenizers.models.WordLevel({evil if word == "w7" else word: i for word, i in words.items()}, "<|unk|>")
    tokenizer.backend_tokenizer.model = backend
    ids = [words[f"w{number}"] for number in (3, 7, 5, 7, 7, 9)]
    documents = [{"input_ids": ids, "labels": [-100, *ids[1:]]}] * 4
    if kind == "tokens":
        html = tokens_page(xray(student, tokenizer, documents, make_target("dft"), None))
    elif kind == "alignment":
        cache = build_cache(documents, student, folder / "evil", tokenizer=tokenizer, top_k=8, progress=False)
        html = alignment_page(measure_alignment(student, tokenizer, documents, cache))
    else:
        html = run_page([Run(evil, ({"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}))])
    browser.open(write_page(folder / f"evil-{kind}.html", html))
    assert "⟨U+202E⟩" in browser.body_text()
    assert browser.invisible() == []
