"""The envelope: its bytes are pinned, every one of them is covered, and it holds what it was given."""

from __future__ import annotations

from hashlib import blake2b

import orjson
import pytest

from milepost.journal.log.entries import BEGINNING, GENESIS, LINE_LIMIT_BYTES, Head, is_whole, pack, peek, unpack
from milepost.transitions.errors import Corrupt, NewerVersion, Refused
from milepost.transitions.updates import StepReported, UpdateApplied, UpdateOpened
from milepost.transitions.values import Metric
from tests.log.chains import AT, resealed

GOLDEN = (
    b'{"seq":1,"epoch":1,"at":"2026-11-29T16:09:04.123456Z","synced":0,"records":'
    b'[{"kind":"update-opened","v":1,"attempt":1,"step":1}],"prev":"00000000000000000000000000000000",'
    b'"sum":"5714346febf3712f3f61e6ebf77d37ff"}\n'
    b'{"seq":2,"epoch":1,"at":"2026-11-29T16:09:04.123456Z","synced":1,"crit":false,"records":'
    b'[{"kind":"update-applied","v":1,"attempt":1},'
    b'{"kind":"step-reported","v":1,"step":1,"metrics":[{"name":"loss","value":"0.5"}]}],'
    b'"prev":"5714346febf3712f3f61e6ebf77d37ff","sum":"cde7e25e1eeb1de62f290ad749dce596"}\n'
)
OPENED = UpdateOpened(attempt=1, step=1)


def line_of(text_bytes: int) -> bytes:
    metric = Metric(name="x" * text_bytes, value="1")
    return pack(GENESIS, (StepReported(step=1, metrics=(metric,)),), epoch=1, at=AT, synced=0)[0]


FRAME_BYTES = len(line_of(0))


def test_the_bytes_of_entries_are_pinned() -> None:
    first, head = pack(GENESIS, (OPENED,), epoch=1, at=AT, synced=0)
    reported = StepReported(step=1, metrics=(Metric(name="loss", value="0.5"),))
    second, _ = pack(head, (UpdateApplied(attempt=1), reported), epoch=1, at=AT, synced=1, crit=False)
    assert first + second == GOLDEN


def test_the_sum_is_that_of_the_raw_bytes_before_it() -> None:
    line, head = pack(GENESIS, (OPENED,), epoch=1, at=AT, synced=0)
    body = line[: line.index(b',"sum":')]
    assert head.sum == blake2b(body, digest_size=16).hexdigest() == orjson.loads(line)["sum"]


def test_an_entry_is_read_back_as_it_was_packed() -> None:
    records = (OPENED, UpdateApplied(attempt=1))
    line, head = pack(Head(seq=7, sum="0" * 32, epoch=2), records, epoch=3, at=AT, synced=5)
    entry = unpack(line)
    assert (entry.seq, entry.epoch, entry.at, entry.synced, entry.crit) == (8, 3, AT, 5, True)
    assert (entry.records, entry.unread, entry.prev) == (records, (), "0" * 32)
    assert entry.head == head
    assert peek(line) == (8, 5)


def test_every_byte_of_a_line_is_covered() -> None:
    line, _ = pack(GENESIS, (OPENED,), epoch=1, at=AT, synced=0)
    assert is_whole(line)
    for offset in range(len(line)):
        for mask in (0x01, 0x20, 0x80):
            assert not is_whole(line[:offset] + bytes([line[offset] ^ mask]) + line[offset + 1 :])
        assert not is_whole(line[:offset])
    assert not is_whole(line + b"\n")
    assert not is_whole(b" " + line)


def test_a_line_is_at_most_one_mebibyte_with_its_newline() -> None:
    longest = line_of(LINE_LIMIT_BYTES - FRAME_BYTES)
    assert len(longest) == LINE_LIMIT_BYTES
    assert is_whole(longest)
    with pytest.raises(Refused, match="1048577 bytes was not recorded"):
        line_of(LINE_LIMIT_BYTES - FRAME_BYTES + 1)


def test_a_line_beyond_the_limit_is_not_whole_even_under_a_right_sum() -> None:
    line = line_of(LINE_LIMIT_BYTES - FRAME_BYTES)
    assert is_whole(resealed(line, b'"step":1,', b'"step":2,'))
    assert not is_whole(resealed(line, b'"step":1,', b'"step":11,'))


def test_a_text_with_quotes_and_newlines_stays_on_its_line_and_begins_no_entry() -> None:
    text = 'a\n{"seq":1,"epoch":1,"at"\0\u2028'
    line, _ = pack(GENESIS, (StepReported(step=1, metrics=(Metric(name=text, value=""),)),), epoch=1, at=AT, synced=0)
    assert line.count(b"\n") == 1
    assert len(BEGINNING.findall(line)) == 1
    assert unpack(line).records[0] == StepReported(step=1, metrics=(Metric(name=text, value=""),))


@pytest.mark.parametrize("field", ["seq", "epoch", "at", "synced", "records", "prev"])
def test_an_envelope_without_a_field_or_with_one_of_another_type_is_corrupt(field: str) -> None:
    line, _ = pack(GENESIS, (OPENED,), epoch=1, at=AT, synced=0)
    document = orjson.loads(line)
    for wrong in (None, True, 1.0, [], {}):
        with pytest.raises(Corrupt):
            unpack(orjson.dumps({**document, field: wrong}))
    del document[field]
    with pytest.raises(Corrupt, match=field):
        unpack(orjson.dumps(document))


def test_a_line_that_is_no_object_is_corrupt() -> None:
    for line in (b"[]\n", b"nonsense\n", b'"x"\n'):
        with pytest.raises(Corrupt, match="although its sum is right"):
            unpack(line)


@pytest.mark.parametrize("more", [{"x": 1}, {"crit": True}, {"crit": 0}, {"crit": False, "x": 1}])
def test_an_envelope_with_more_than_this_version_knows_is_of_a_newer_one(more: dict[str, object]) -> None:
    line, _ = pack(GENESIS, (OPENED,), epoch=1, at=AT, synced=0)
    with pytest.raises(NewerVersion):
        unpack(orjson.dumps({**orjson.loads(line), **more}))


def test_an_uncritical_entry_keeps_what_it_knows_and_still_refuses_what_is_wrong() -> None:
    line, _ = pack(GENESIS, (OPENED, UpdateApplied(attempt=1)), epoch=1, at=AT, synced=0, crit=False)
    entry = unpack(resealed(line, b'"update-applied"', b'"update-dreamt"'))
    assert (entry.records, entry.unread) == ((OPENED,), ("update-dreamt",))
    later = unpack(resealed(line, b'"update-applied","v":1', b'"update-applied","v":2'))
    assert later.unread == ("update-applied",)
    with pytest.raises(Corrupt, match="attempt"):
        unpack(resealed(line, b'"attempt":1,"step"', b'"attempt":"1","step"'))
