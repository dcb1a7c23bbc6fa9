"""Rows of undone batches that stay in the target: a delivery continues after them if their batches count again. Pure.

A halt that is accepted leaves them there, and a later rewind may return to their batches. A delivery has always
delivered all batches that its newest batch follows, so the last delivered batch of each generation is enough. Of a step
that had not ended, the target has the rows up to a row, in the order of identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from lockstep.declare.delivery_target import DeliveryToken, UndoneStep
from lockstep.table.follower_positions import find_generation
from lockstep.table.head import Head


def move_token(token: DeliveryToken, batch: int, generation: int) -> DeliveryToken:
    """The token between two steps, after a batch. Pure."""
    return replace(
        token,
        batch=batch,
        batch_generation=generation,
        step_batch=batch,
        step_generation=generation,
        last=None,
        rows=0,
        written_at=datetime.now(UTC),
    )


def list_delivered(token: DeliveryToken) -> dict[int, int]:
    """The last batch of each generation whose rows are in the target as a whole, undone batches included."""
    delivered = dict(token.undone)
    for generation, last in _list_followed(token, token.batch_generation, token.batch).items():
        delivered[generation] = max(last, delivered.get(generation, 0))
    return delivered


def list_started(token: DeliveryToken) -> dict[int, int]:
    """The last batch of each generation up to the end of the step in progress, in the history that was read."""
    return _list_followed(token, token.step_generation, token.step_batch)


def find_newest_batch(token: DeliveryToken) -> int:
    """The newest batch of which the target may have rows, also if it was undone; 0 for none."""
    batches = {token.step_batch, *list_delivered(token).values()}
    for step in token.undone_steps:
        batches |= {*step.batches.values()}
    return max(batches)


def find_last_common(delivered: Mapping[int, int], valid: Mapping[int, int]) -> int:
    """The last batch that both have, by the last batch of each generation; 0 for none."""
    return max((min(last, valid[each]) for each, last in delivered.items() if each in valid), default=0)


def remember_undone(token: DeliveryToken, head: Head) -> DeliveryToken:
    """The token behind the delivered rows that count, with the rows that were undone. See `advance_token`."""
    delivered = list_delivered(token)
    steps = token.undone_steps
    if token.last is not None:
        batches = {each: last for each, last in list_started(token).items() if last > token.batch}
        steps = (*steps, UndoneStep(batches=batches, last=token.last))
    kept = replace(token, valid=head.valid_batches, undone=delivered, undone_steps=steps)
    return advance_token(move_token(kept, 0, 0), head)


def advance_token(token: DeliveryToken, head: Head) -> DeliveryToken:
    """The token behind the rows that the target has of batches that count again.

    It may be inside a step then, whose `rows` are to be counted. A token of an undone batch, or inside a step, stays.
    """
    valid = head.valid_batches
    if token.last is not None or token.batch > valid.get(token.batch_generation, 0):
        return token
    delivered = list_delivered(token)
    batch = find_last_common(delivered, valid)
    if batch > token.batch:
        token = move_token(token, batch, find_generation(head, batch))
    counting = [each for each in token.undone_steps if find_last_common(each.batches, valid) > batch]
    may_return = bool(head.rewinds or head.savepoints)
    token = replace(
        token,
        undone={each: last for each, last in delivered.items() if may_return and last > valid.get(each, 0)},
        undone_steps=tuple(
            each for each in token.undone_steps if each in counting or (may_return and _has_more(each, delivered))
        ),
    )
    if not counting:
        return token
    newest = max(counting, key=lambda each: each.last)  # the rows after this one are left
    end = find_last_common(newest.batches, valid)
    return replace(token, step_batch=end, step_generation=find_generation(head, end), last=newest.last)


def forget_undone(token: DeliveryToken, head: Head) -> DeliveryToken:
    """The token after the rows of undone batches were deleted in the target: if they count again, they are delivered.

    A dead letter of them is then another attempt.
    """
    valid = head.valid_batches
    steps = list[UndoneStep]()
    for step in token.undone_steps:
        batches = {each: min(last, valid[each]) for each, last in step.batches.items() if each in valid}
        steps.append(replace(step, batches=batches))
    dead = tuple(each for each in token.dead if each.batch <= valid.get(each.generation, 0))
    return replace(token, undone={}, undone_steps=tuple(steps), dead=dead)


def _list_followed(token: DeliveryToken, generation: int, batch: int) -> dict[int, int]:
    """The last batch of each generation up to a batch that counted when the rows were read."""
    earlier = {each: last for each, last in token.valid.items() if each < generation}
    return earlier | ({generation: batch} if batch else {})


def _has_more(step: UndoneStep, delivered: Mapping[int, int]) -> bool:
    """Whether batches of a step were not delivered as a whole since."""
    return any(last > delivered.get(each, 0) for each, last in step.batches.items())
