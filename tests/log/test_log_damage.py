"""What a damaged log is called: every row of the table by construction, and every byte of a small log bent."""

from __future__ import annotations

import pytest

from milepost.journal.log import damage
from milepost.journal.log.damage import TABLE, Damaged, Verdict
from milepost.journal.log.entries import GENESIS, LINE_LIMIT_BYTES
from milepost.journal.log.replay import Folded, fold
from milepost.journal.log.scan import Scan, survey
from milepost.transitions.errors import NewerVersion
from milepost.transitions.run import SegmentOpened
from milepost.transitions.updates import StepReported
from milepost.transitions.values import Metric, Witness
from tests.log.chains import RESUMED, Chain, MemoryLog, answer, applied, attempt, opened, resealed, run_opened, sample

LOG, LINES, WITNESSES = sample()
ONE, TWO, THREE = LINES
HEAD = fold(LOG).head
AT_THE_HEAD = {"iter_000000009": Witness(seq=HEAD.seq, sum=HEAD.sum)}


def third(*lines: bytes) -> MemoryLog:
    """The sample with these lines as its last segment."""
    return LOG.but(3, b"".join(lines))


def bent(line: bytes) -> bytes:
    return line.replace(b'"at":"2', b'"at":"3', 1)


def finding(log: MemoryLog) -> damage.Finding:
    refused = attempt(log)
    assert isinstance(refused, Damaged)
    return refused.finding


def test_the_sample_is_whole_and_folds_to_its_last_line() -> None:
    assert answer(LOG, WITNESSES | AT_THE_HEAD) == "clean"
    folded = fold(LOG, witnesses=WITNESSES)
    assert (folded.entries, folded.head.seq, folded.head.epoch, folded.read) == (11, 11, 3, (3, 2, 1))
    assert folded.state.updates.clocks.attempt_id == 1


def test_an_empty_log_stands_at_genesis() -> None:
    folded = fold(MemoryLog({}))
    assert (folded.head, folded.closes, folded.torn, folded.entries) == (GENESIS, (), (), 0)


EXAMPLES: dict[damage.Row, tuple[MemoryLog, dict[str, Witness]]] = {
    damage.TORN_TAIL: (third(*THREE[:4], THREE[4][:-1]), {}),
    damage.HALF_BORN: (third(THREE[0][:-1]), {}),
    damage.SYNCED_LINE: (third(THREE[0], bent(THREE[1]), THREE[2]), {}),
    damage.HEADLESS: (third(bent(THREE[0]), THREE[1]), {}),
    damage.WITNESSED_LINE: (third(*THREE[:4], THREE[4][:-1]), AT_THE_HEAD),
    damage.CLOSED_LINE: (LOG.but(2, TWO[0] + bent(TWO[1]) + TWO[2]), {}),
    damage.CLOSED_OTHERWISE: (LOG.without(2), {}),
    damage.UNCLOSED: (MemoryLog({1: ONE[0], 2: Chain().opening(2)}), {}),
    damage.MISPLACED: (third(*THREE[1:]), {}),
    damage.GAP: (third(THREE[0], THREE[2]), {}),
    damage.SPLICED: (third(*THREE[:2], resealed(THREE[2], b'"prev":"', b'"prev":"x')), {}),
    damage.UNREADABLE: (third(*THREE[:2], resealed(THREE[2], b'"step":1', b'"step":"1"')), {}),
    damage.ILLEGAL: (third(*THREE[:2], resealed(THREE[2], b'"attempt":1', b'"attempt":7')), {}),
    damage.WITNESS_DIFFERS: (LOG, {"iter_000000004": Witness(seq=4, sum="f" * 32)}),
    damage.LOST_HEAD: (third(*THREE[:4]), AT_THE_HEAD),
    damage.NEWER: (third(*THREE[:2], resealed(THREE[2], b'"v":1', b'"v":2')), {}),
}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.code)
def test_every_row_of_the_table_is_met(row: damage.Row) -> None:
    found = answer(*EXAMPLES[row])
    assert found == ("newer" if row is damage.NEWER else f"{row.verdict.value}: {row.code}")


def test_every_row_has_a_code_of_its_own_a_meaning_and_a_next_action() -> None:
    assert len({row.code for row in TABLE}) == len(TABLE) == len(EXAMPLES)
    assert all(row.meaning.endswith(".") and row.action for row in TABLE)
    assert {row.verdict for row in TABLE} == set(Verdict)


# --- torn --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(THREE[4][:-1], id="no newline"),
        pytest.param(THREE[4][:40], id="cut short"),
        pytest.param(b"\0" * 512, id="NULs"),
        pytest.param(b"\0" * 512 + b"\n", id="NULs and a newline"),
        pytest.param(b"\0" * 40 + THREE[4][40:], id="NULs and the rest of a line"),
        pytest.param(b"\n", id="an empty line"),
        pytest.param(bent(THREE[4]), id="another byte"),
        pytest.param(b"x" * (LINE_LIMIT_BYTES + 9) + b"\n", id="a line beyond the limit"),
        pytest.param(b"x" * (2 * LINE_LIMIT_BYTES + 9), id="more than a line without a newline"),
    ],
)
def test_a_bad_tail_that_nobody_names_as_synced_is_set_aside(tail: bytes) -> None:
    folded = attempt(third(*THREE[:4], tail), WITNESSES)
    assert isinstance(folded, Folded)
    (found,) = folded.torn
    assert (found.row, found.segment, found.seq) == (damage.TORN_TAIL, 3, 11)
    assert found.offset == folded.closes[0].length == sum(map(len, THREE[:4]))
    assert folded.closes[0].left == len(tail)
    assert folded.head.seq == 10


def test_of_two_unsynced_lines_only_the_second_may_survive() -> None:
    hole = b"\0" * len(THREE[3])
    for log in (third(*THREE[:3], hole, THREE[4]), third(*THREE[:3], hole[:-1], b"\n", THREE[4])):
        assert answer(log, WITNESSES) == "torn: torn-tail"
        assert fold(log).head.seq == 9


@pytest.mark.parametrize("length", [0, 1, 200, len(THREE[0]) - 1])
def test_a_segment_without_a_valid_header_closes_nothing(length: int) -> None:
    log = LOG.but(3, THREE[0][:length])
    folded = attempt(log, WITNESSES)
    assert isinstance(folded, Folded)
    assert folded.head.seq == 6
    assert [found.row for found in folded.torn] == ([damage.HALF_BORN] if length else [])
    assert [(c.number, c.length, c.seq, c.sum, c.left) for c in folded.closes] == [
        (2, len(b"".join(TWO)), 6, folded.head.sum, 0),
        (3, 0, 0, "", length),
    ]


def test_a_header_may_close_several_that_were_never_born() -> None:
    chain = Chain(fold(LOG).head, epoch=4)
    closes = (*fold(LOG).closes, *fold(MemoryLog({4: b"{", 5: b""})).closes)
    log = MemoryLog({**LOG.segments, 4: b"{", 5: b"", 6: chain.opening(6, *closes)})
    assert answer(log) == "clean"
    assert [closed.number for closed in fold(log).closes] == [6]


def test_what_lies_behind_the_stated_length_is_never_folded_even_if_it_chains() -> None:
    behind = LOG.segments[1][len(b"".join(ONE)) :]
    assert behind.count(b"\n") == 2
    alone = MemoryLog({1: LOG.segments[1]})
    assert fold(alone).head.seq == 5
    assert fold(LOG.without(3)).state.updates.clocks.attempt_id == 0


def test_an_overtaken_writer_may_write_its_header_late() -> None:
    before = Chain()
    first = before.opening(1) + before.line(RESUMED, synced=1)
    late = Chain(before.head, epoch=2).opening(2, before.closing(1, len(first)))
    after = first + before.line(opened(1), synced=2)
    closes = fold(MemoryLog({1: after, 2: b""})).closes
    log = MemoryLog({1: after, 2: late, 3: Chain(before.head, epoch=2).opening(3, *closes)})
    assert answer(log) == "clean"
    assert (fold(log).entries, fold(log).state.run.opened) == (4, run_opened(2))


# --- corrupt -----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
def test_a_bad_line_that_a_later_entry_names_as_synced_is_corrupt(k: int) -> None:
    for bad in (bent(THREE[k]), b"\0" * len(THREE[k]), b"\0" * (2 * LINE_LIMIT_BYTES), THREE[k][:-1], b"\n"):
        assert answer(third(*THREE[:k], bad, *THREE[k + 1 :])) == "corrupt: synced-line"


def test_an_entry_behind_a_long_hole_is_found_wherever_the_hole_ends() -> None:
    for short in (0, 1, 100, len(THREE[2]) - 1):
        hole = b"\0" * (LINE_LIMIT_BYTES + 1 - short)
        assert answer(third(THREE[0], hole, THREE[2])) == "corrupt: synced-line"


@pytest.mark.parametrize("k", range(1, 5))
def test_a_bad_line_that_a_witness_names_is_corrupt(k: int) -> None:
    assert answer(third(*THREE[:k], bent(THREE[k])), AT_THE_HEAD) == "corrupt: witnessed-line"


def test_a_torn_header_that_a_witness_knows_more_than_is_corrupt() -> None:
    assert answer(third(THREE[0][:50]), AT_THE_HEAD) == "corrupt: witnessed-line"


def test_a_bad_header_before_an_entry_is_corrupt() -> None:
    for header in (bent(THREE[0]), THREE[0][:-1], b"\0" * len(THREE[0])):
        assert answer(third(header, THREE[1])) == "corrupt: headless"


def test_a_bad_line_within_the_valid_length_of_a_closed_segment_is_corrupt() -> None:
    for k in range(3):
        for number, lines in ((1, ONE), (2, TWO)):
            bad = b"".join((*lines[:k], bent(lines[k]), *lines[k + 1 :]))
            assert answer(LOG.but(number, bad + LOG.segments[number][len(bad) :])) == "corrupt: closed-line"


def test_a_closed_segment_that_is_missing_or_short_is_corrupt() -> None:
    assert answer(LOG.without(1)) == "corrupt: closed-otherwise"
    assert answer(LOG.without(2)) == "corrupt: closed-otherwise"
    assert answer(LOG.but(2, b"".join(TWO[:2]))) == "corrupt: closed-otherwise"
    assert answer(LOG.but(2, b"")) == "corrupt: closed-otherwise"


def test_a_header_that_states_another_last_entry_is_corrupt() -> None:
    chain = Chain()
    first = chain.opening(1)
    wrong = Chain(chain.head, epoch=2)
    chain.line(RESUMED, synced=1)
    log = MemoryLog({1: first, 2: wrong.opening(2, chain.closing(1, len(first)))})
    assert answer(log) == "corrupt: closed-otherwise"


def test_a_segment_that_no_header_closes_is_corrupt() -> None:
    chain = Chain()
    first = chain.opening(1)
    assert answer(MemoryLog({1: first, 2: chain.opening(2)})) == "corrupt: unclosed"


def test_a_segment_that_begins_with_something_else_is_corrupt() -> None:
    chain = Chain()
    assert answer(MemoryLog({1: chain.line(run_opened(1))})) == "corrupt: misplaced"
    assert answer(MemoryLog({2: ONE[0]})) == "corrupt: misplaced"
    assert answer(third(*THREE[1:])) == "corrupt: misplaced"


def test_a_header_that_closes_what_is_closed_or_not_before_it_is_corrupt() -> None:
    chain = Chain()
    first = chain.opening(1)
    closes = chain.closing(1, len(first))
    second = chain.opening(2, closes)
    again = Chain(chain.head, epoch=2).opening(3, chain.closing(2, len(second)), closes)
    assert answer(MemoryLog({1: first, 2: second, 3: again})) == "corrupt: misplaced"
    itself = Chain(chain.head).opening(2, closes, chain.closing(2, 9))
    assert answer(MemoryLog({1: first, 2: itself})) == "corrupt: misplaced"


@pytest.mark.parametrize(
    "order", [(0, 2), (0, 1, 1), (0, 2, 1), (0, 1, 3), (0, 1, 2, 2, 3)], ids=lambda order: "".join(map(str, order))
)
def test_missing_doubled_and_reordered_entries_are_a_gap(order: tuple[int, ...]) -> None:
    log = third(*(THREE[k] for k in order))
    assert answer(log) == "corrupt: gap"
    bad = next(place for place, k in enumerate(order) if place != k)
    assert finding(log).offset == sum(len(THREE[k]) for k in order[:bad])
    assert finding(log).seq == 7 + bad


def test_an_entry_that_continues_the_chain_under_another_seq_is_a_gap() -> None:
    assert answer(third(*THREE[:2], resealed(THREE[2], b'"seq":9', b'"seq":10'))) == "corrupt: gap"


def test_a_log_without_its_beginning_is_a_gap() -> None:
    chain = Chain()
    chain.opening(1)
    assert answer(MemoryLog({2: Chain(chain.head, epoch=2).opening(2)})) == "corrupt: gap"


def test_an_entry_of_another_log_is_spliced() -> None:
    other = Chain()
    foreign = [other.opening(1), other.line(RESUMED, synced=0), other.line(applied(1), synced=2)]
    mine = Chain()
    log = MemoryLog({1: mine.opening(1) + mine.line(RESUMED, synced=1) + foreign[2]})
    assert answer(log) == "corrupt: spliced"


def test_a_whole_line_with_a_malformed_record_is_unreadable() -> None:
    for old, new in (
        (b'"attempt":1', b'"attempt":"1"'),
        (b'"attempt":1', b'"attempt":true'),
        (b'"attempt":1,', b""),
        (b'"step":1', b'"step":1,"more":1'),
        (b'"synced":8', b'"synced":9'),
        (b'"epoch":3', b'"epoch":"3"'),
        (b'"records":[', b'"records":[],"x":['),
    ):
        log = third(*THREE[:2], resealed(THREE[2], old, new))
        expected = "newer" if b'"x"' in new else "corrupt: unreadable"
        assert answer(log) == expected


def test_a_record_that_may_not_follow_is_illegal_and_has_its_place() -> None:
    chain = Chain()
    lines = [chain.opening(1), chain.line(RESUMED, synced=1), chain.line(applied(2), synced=2)]
    found = finding(MemoryLog({1: b"".join(lines)}))
    assert found.row is damage.ILLEGAL
    assert (found.segment, found.offset, found.seq) == (1, len(lines[0]) + len(lines[1]), 3)


def test_a_witness_of_another_sum_is_refused_and_named() -> None:
    wrong = {"iter_000000004": Witness(seq=4, sum="f" * 32)}
    assert answer(LOG, WITNESSES | wrong) == "corrupt: witness-differs"
    with pytest.raises(Damaged, match="iter_000000004"):
        fold(LOG, witnesses=wrong)


# --- lost and newer ----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", range(1, 5))
def test_a_chain_that_ends_before_a_witness_has_lost_its_head(kept: int) -> None:
    log = third(*THREE[:kept])
    assert answer(log) == "clean"
    assert answer(log, WITNESSES | AT_THE_HEAD) == "lost: lost-head"
    with pytest.raises(Damaged, match="iter_000000009"):
        fold(log, witnesses=WITNESSES | AT_THE_HEAD)


def test_a_log_without_its_newest_segment_or_without_any_has_lost_its_head() -> None:
    assert answer(LOG.without(3), AT_THE_HEAD) == "lost: lost-head"
    assert answer(LOG.but(3, b""), AT_THE_HEAD) == "lost: lost-head"
    assert answer(MemoryLog({}), AT_THE_HEAD) == "lost: lost-head"


@pytest.mark.parametrize(
    ("old", "new"), [(b"update-opened", b"update-dreamt"), (b'"v":1', b'"v":2'), (b'"synced":8', b'"synced":8,"x":1')]
)
def test_an_entry_of_a_newer_milepost_stops_the_replay_and_says_so(old: bytes, new: bytes) -> None:
    log = third(*THREE[:2], resealed(THREE[2], old, new))
    assert answer(log) == "newer"
    with pytest.raises(NewerVersion, match="newer milepost"):
        fold(log)


def test_an_uncritical_entry_of_a_newer_milepost_is_passed_over() -> None:
    line = resealed(THREE[2], b'"synced":8', b'"synced":8,"crit":false')
    log = third(*THREE[:2], resealed(line, b"update-opened", b"update-dreamt"))
    assert answer(log) == "clean"
    assert fold(log).head.seq == 9
    assert fold(log).state.updates.step == 0
    last = list(Scan(log, survey(log)))[-1]
    assert (last.crit, last.records, last.unread) == (False, (), ("update-dreamt",))


# --- every byte --------------------------------------------------------------------------------


def expected_of(number: int, offset: int) -> str:
    """What a wrong byte there must be called, from the rule and not from the code."""
    lines = LINES[number - 1]
    ends = [sum(map(len, lines[: k + 1])) for k in range(len(lines))]
    if offset >= ends[-1]:
        return "clean"
    k = next(k for k, end in enumerate(ends) if offset < end)
    if number < 3:
        return "corrupt: closed-line"
    if k == 0:
        return "corrupt: headless"
    return "corrupt: synced-line" if k < 3 else "torn: torn-tail"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_byte_of_the_log_is_covered(number: int) -> None:
    data = LOG.segments[number]
    for offset in range(len(data)):
        log = LOG.but(number, data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        assert answer(log, WITNESSES) == expected_of(number, offset), f"byte {offset}"


@pytest.mark.parametrize("byte", [b"\n", b"\0"])
def test_newlines_and_nuls_in_the_last_segment_change_no_class(byte: bytes) -> None:
    data = LOG.segments[3]
    for offset in range(0, len(data), 3):
        if data[offset : offset + 1] != byte:
            log = LOG.but(3, data[:offset] + byte + data[offset + 1 :])
            assert answer(log, WITNESSES) == expected_of(3, offset), f"byte {offset}"


def test_a_log_cut_at_any_length_is_clean_torn_lost_or_corrupt_as_the_cut_says() -> None:
    data = LOG.segments[3]
    boundaries = {sum(map(len, THREE[:k])) for k in range(6)}
    for length in range(len(data)):
        log = LOG.but(3, data[:length])
        torn = "torn: torn-tail" if length > len(THREE[0]) else "torn: half-born"
        assert answer(log, WITNESSES) == ("clean" if length in boundaries else torn), f"length {length}"
        known = "lost: lost-head" if length in boundaries else "corrupt: witnessed-line"
        assert answer(log, AT_THE_HEAD) == known, f"length {length}"


def test_a_closed_segment_cut_at_any_length_is_corrupt() -> None:
    for number, lines in ((1, ONE), (2, TWO)):
        valid = sum(map(len, lines))
        for length in range(len(LOG.segments[number])):
            expected = "corrupt: closed-otherwise" if length < valid else "clean"
            assert answer(LOG.but(number, LOG.segments[number][:length])) == expected, f"length {length}"


# --- the messages ------------------------------------------------------------------------------


def test_a_refusal_says_where_what_was_expected_what_was_found_and_what_to_do() -> None:
    refused = attempt(third(THREE[0], bent(THREE[1]), *THREE[2:]))
    message = str(refused)
    assert f"segment 3, byte {len(THREE[0])}, entry 8" in message
    assert "whose sum differs" in message
    assert "Next: keep the journal as it is" in message


def test_a_long_entry_is_read_back() -> None:
    chain = Chain()
    lines = [chain.opening(1), chain.line(RESUMED, synced=1)]
    metric = Metric(name="x" * (LINE_LIMIT_BYTES - 400), value="1")
    lines.append(chain.line(StepReported(step=1, metrics=(metric,)), synced=2))
    lines.append(chain.line(SegmentOpened(number=2, closes=()), synced=2))
    assert fold(MemoryLog({1: b"".join(lines)})).head.seq == 4
