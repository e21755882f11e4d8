"""A page is one file that works offline, and what users wrote in it is escaped."""

import re

import plotly.graph_objects as go
import pytest

from qsft.page import BLUE, COLORS, ROLES, escape, faint, figure, page, table, write_page


def test_a_page_with_a_figure_is_one_small_file_that_makes_no_request(tmp_path):
    html = page("Title", figure(go.Figure(go.Bar(y=[1, 2])), "Two bars"), lede="A sentence.")
    path = write_page(tmp_path / "deep" / "page.html", html)
    assert 1e6 < path.stat().st_size < 6e6
    outside_blobs = re.sub(r'<script type="text/plain".*?</script>', "", html, flags=re.S)
    assert not re.search(r'(src|href)="(?!data:|#)', outside_blobs)
    assert "default-src &#x27;none&#x27;" in html
    assert "<title>Title</title>" in html


def test_a_page_without_figures_carries_no_plotly():
    assert len(page("Title", "<p>Text</p>")) < 30_000


def test_what_users_wrote_is_escaped():
    evil = '"><script>alert(1)</script>'
    fig = go.Figure(go.Bar(x=[evil], y=[1]))
    html = page(evil, figure(fig, evil) + table([evil], [[evil]], evil), lede=evil, data={"text": evil})
    assert "alert(1)</script>" not in html
    assert html.count("<script>") == 1  # the shell's own


def test_numbers_in_tables_are_aligned_and_short():
    html = table(["name", "share", "count"], [["a", 0.123456789, 12345]])
    assert '<td class="number">0.1235</td>' in html
    assert '<td class="number">12,345</td>' in html
    assert '<th scope="row">a</th>' in html
    assert table(["name"], []).count("<tr>") == 1


def test_data_that_is_not_json_raises():
    with pytest.raises(ValueError, match="JSON"):
        page("Title", "", data={"x": float("nan")})


def test_escape_is_safe_in_attributes():
    assert escape("'\"<>&") == "&#x27;&quot;&lt;&gt;&amp;"


def test_the_palette_has_a_role_for_every_color_and_a_faint_form():
    assert set(COLORS) < set(ROLES)
    assert faint(BLUE) == "rgba(0, 114, 178, 0.18)"
    assert '"0,114,178": "accent"' in page("Title", "")
