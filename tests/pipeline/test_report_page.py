"""The page says what is there, shows texts as texts, and stays small."""

import io
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from pipeline.errors import ShardError
from pipeline.manifest import embeddings_url
from pipeline.quarantine import describe_failure, write_failure
from pipeline.report import make_report
from pipeline.report_page import render_page
from pipeline.report_summary import state_of
from pipeline.run_record import read_run
from tests.pipeline import outputs
from tests.pipeline.outputs import WIDTH, Output, shard_id
from tests.pipeline.tar_files import tar_bytes

EVIL = "<script>alert(1)</script>"
EVIL_ATTRIBUTE = '"><img src=x onerror=alert(1)>'
# The input is a bucket behind a port where nothing answers: tests leave the network alone.
CLOSED = {
    "s3": {"endpoint": "http://127.0.0.1:9", "allow_http": True, "skip_signature": True},
    "retries": 0,
}
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """What a browser would find, coarsely; tags must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.attributes, self.texts = Counter(), [], [], []
        self._open = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def output(tmp_path):
    return Output(f"memory:///{tmp_path.name}", inputs=["a", "b"], storage=CLOSED)


def report_of(output, inputs=("a", "b"), **options):
    record = read_run(output.storage, output.path)
    shards = None if inputs is None else [shard_id(name) for name in inputs]
    return make_report(output.storage, output.path, record, shards, **options)


def page_of(output, **options):
    text = render_page(report_of(output, **options))
    assert len(text.encode()) < 5_000_000
    return Page(text)


def test_a_whole_output_has_all_figures(output):
    output.publish("a", rejects={"x": "decode_error"})
    output.publish("b", tuple(f"k{number}" for number in range(40)))
    page = page_of(output)
    assert "44 read = 43 embedded + 1 rejected" in page.text
    assert "Complete Every input shard has its output." in page.text
    assert "All 43 embedded images." in page.text
    titles = {"Rejects by reason", "Throughput", "Shards in work", "Where the time went"}
    titles |= {"Tokens of an image", "Size of the images", "Grids"}
    titles |= {"Similarity of random pairs", "Variance spectrum", "Length of the vectors"}
    assert titles <= set(page.texts)
    assert page.tags["figure"] == page.tags["figcaption"] == page.tags["svg"] == len(titles)
    assert page.tags["table"] >= len(titles)
    assert Counter(page.ids).most_common(1)[0][1] == 1


def test_references_lead_somewhere(output):
    output.publish("a", rejects={"x": "decode_error"})
    page = page_of(output)
    names = ("href", "xlink:href", "aria-labelledby")
    wanted = {value.lstrip("#") for name, value in page.attributes if name in names}
    clips = (re.findall(r"url\(#([^)]*)\)", value or "") for _, value in page.attributes)
    wanted |= {name for found in clips for name in found}
    assert wanted - {"data:,"} <= set(page.ids)


def test_texts_from_data_stay_texts(output):
    keys = (EVIL, EVIL_ATTRIBUTE, "$x$ & {{ 7 * 7 }}", "back\\x00slash")
    output.publish("a", keys, rejects={EVIL + "2": "decode_error", "</li>": "empty_image"})
    failure = describe_failure(shard_id(EVIL), ShardError(EVIL_ATTRIBUTE, shard_id(EVIL)), 3)
    write_failure(output.storage, output.path, failure)
    output.storage.put(embeddings_url(output.path, shard_id("<b>")), b"no")
    page = page_of(output, inputs=None, inputs_problem=EVIL)
    assert page.tags["script"] == page.tags["img"] == page.tags["b"] == 0
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    for text in (*keys, EVIL + "2.jpg", "</li>.jpg"):
        assert text in page.texts
    assert f"in/{EVIL}.tar" in page.text
    assert f"not compared with the input: {EVIL}" in page.text


def test_nothing_is_asked_of_the_network(output):
    output.publish("a")
    text = render_page(report_of(output))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert policy in text
    links = [value for name, value in Page(text).attributes if name in ("src", "href")]
    assert all(link.startswith(("#", "data:")) for link in links)


@pytest.mark.parametrize(
    ("done", "failed", "inputs", "label"),
    [
        ((), (), ("a", "b"), "Nothing yet"),
        (("a",), (), ("a", "b"), "Not finished"),
        (("a",), ("b",), ("a", "b"), "Finished with failed shards"),
        (("a",), ("b",), ("a", "b", "c"), "Not finished"),
        (("a", "b"), (), ("a", "b"), "Complete"),
        (("a", "b"), (), None, "Readable"),
    ],
)
def test_the_state_of_the_run_comes_first(output, done, failed, inputs, label):
    for name in done:
        output.publish(name)
    for name in failed:
        failure = describe_failure(shard_id(name), ShardError("cut", shard_id(name)), 3)
        write_failure(output.storage, output.path, failure)
    report = report_of(output, inputs=inputs)
    assert state_of(report).label == label
    assert label in Page(render_page(report)).text


def test_shards_without_rows_and_a_single_row_make_a_page(output):
    output.publish("a", keys=(), rejects={"x": "empty_image"})
    assert "too few vectors" in page_of(output).text
    output.publish("b", keys=("only",))
    assert "2 read = 1 embedded + 1 rejected" in page_of(output).text


@pytest.mark.parametrize("value", [0.0, 1.0, 3e38])
def test_vectors_that_are_all_the_same_make_a_page(output, value):
    vectors = np.full((4, WIDTH), value, np.float32)
    output.publish("a", tuple("stuv"), vectors=vectors)
    page = page_of(output)
    assert ("All vectors are the same." if value else "too few vectors") in page.text


def test_outputs_of_other_shards_are_told_apart(output):
    for name in ("a", "old", "older"):
        output.publish(name)
    page = page_of(output)
    assert "1 of 2 input shards done." in page.text
    assert "2 outputs of shards that are not in the input." in page.text


def test_token_columns_are_measured_by_their_mean(tmp_path):
    settings = {"path": f"memory:///{tmp_path.name}", "vectors": "tokens", "dtype": "float32"}
    output = Output(settings["path"], output=settings, storage=CLOSED)
    vectors = 9 * np.random.default_rng(0).standard_normal((5, WIDTH)).astype(np.float32)
    output.publish("a", tuple("vwxyz"), vectors=vectors)
    page = page_of(output)
    assert "an image is measured by their mean" in page.text
    assert "unit vectors" not in page.text


def test_the_page_is_small_where_everything_is_large(tmp_path, monkeypatch):
    """Long keys, all reasons, pictures that do not compress, a configuration of many shards."""
    shards = f"memory:///{tmp_path.name}-in/"
    monkeypatch.setattr(outputs, "shard_id", lambda name: f"{shards}{name}.tar")
    reasons = (
        "decode_error",
        "truncated_image",
        "several_images",
        "duplicate_key",
        "missing_metadata",
    )
    noise = np.random.default_rng(0).integers(0, 256, (168, 168, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    names = [f"{'long' * 10}{number}" for number in range(70)]
    output = Output(f"memory:///{tmp_path.name}", inputs=names)
    for name in names:
        keys = tuple(f"{'k' * 500}{name}{number}" for number in range(4))
        output.publish(name, keys, rejects={f"{'r' * 300}{name}{r}": r for r in reasons})
        members = [f"{'r' * 300}{name}{reason}.jpg" for reason in reasons]
        members += [f"{key}.jpg" for key in keys]
        tar = tar_bytes([(member, buffer.getvalue()) for member in members])
        output.storage.put(f"{shards}{name}.tar", tar)
    text = render_page(report_of(output, inputs=None))
    page = Page(text)
    assert page.tags["img"] > 40
    assert "A sample: 256 of 280 embedded images" in page.text
    assert len(text.encode()) < 5_000_000
