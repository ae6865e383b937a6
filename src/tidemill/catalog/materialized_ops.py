"""Catalog operations that create and alter materialized views; applied by `ops`.

The query of a view is replaced in three of them: `ReplaceQuery` begins to compute the new one beside the old
one, `SwitchQuery` is the moment at which the view has the new one, `EndReplacement` removes what was beside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill.catalog.columns import check_columns, check_replaced
from tidemill.catalog.items import ItemId, MaterializedView, Reference, Replacement, Switch
from tidemill.catalog.source_ops import SourceDraft
from tidemill.errors import DependentObjects, InvalidValue, UndefinedObject, Unsupported
from tidemill.types.model import RelationDesc


@dataclass(frozen=True, slots=True)
class CreateMaterializedViewOp:
    schema: ItemId
    name: str
    sql: str
    desc: RelationDesc
    references: tuple[Reference, ...]
    retain_history_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SetViewHistory:
    """RESET is None."""

    view: ItemId
    milliseconds: int | None


@dataclass(frozen=True, slots=True)
class ReplaceQuery:
    """In the place of a replacement that is still computed."""

    view: ItemId
    sql: str
    desc: RelationDesc
    references: tuple[Reference, ...]
    # None: as it is.
    retain_history_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SwitchQuery:
    """From `at` on the view holds the result of the replacement's query."""

    view: ItemId
    replacement: ItemId
    at: int
    gap_from: int | None = None


@dataclass(frozen=True, slots=True)
class EndReplacement:
    """The shard of the replacement is not needed any more: the view has its result, or (unless `done`) the
    replacement is given up and the view keeps its query."""

    view: ItemId
    replacement: ItemId
    done: bool


MaterializedOp = CreateMaterializedViewOp | SetViewHistory | ReplaceQuery | SwitchQuery | EndReplacement


def beside(view: MaterializedView, new: Replacement) -> MaterializedView:
    """The replacement as a view of its own, which the catalog does not have: its maintenance needs one."""
    return MaterializedView(
        new.id,
        view.name,
        view.schema,
        new.sql,
        view.desc,
        new.shard,
        new.created,
        new.depends_on,
        new.references,
    )


def apply(draft: SourceDraft, op: MaterializedOp) -> None:
    match op:
        case CreateMaterializedViewOp():
            draft.check_name(op.schema, op.name)
            check_columns(op.desc)
            depends_on = tuple(dict.fromkeys(r.id for r in op.references))
            for needed in depends_on:
                draft.state.relation(needed)
            item_id = draft.new_id()
            draft.put(
                MaterializedView(
                    item_id,
                    op.name,
                    op.schema,
                    op.sql,
                    op.desc,
                    f"{item_id}-{draft.time}",
                    draft.time,
                    depends_on,
                    op.references,
                    op.retain_history_ms,
                )
            )
        case SetViewHistory():
            view = draft.state.get(op.view, MaterializedView)
            draft.put(replace(view, retain_history_ms=op.milliseconds))
        case ReplaceQuery():
            draft.put(_replacing(draft, op))
        case SwitchQuery():
            draft.put(_switched(draft, op))
        case EndReplacement():
            draft.put(_ended(draft, op))


def _replacing(draft: SourceDraft, op: ReplaceQuery) -> MaterializedView:
    view = draft.state.get(op.view, MaterializedView)
    check_replaced(view.desc, op.desc)
    if len(op.desc.columns) > len(view.desc.columns):
        raise Unsupported(
            "columns cannot be added to a materialized view by replacing its query",
            detail="Its rows before the change have no values for them.",
            hint="Create another materialized view.",
        )
    if view.switching:
        raise DependentObjects(
            f'materialized view "{view.name}" is being switched to another query',
            hint="Run the statement again.",
            sqlstate="55006",
        )
    depends_on = {r.id for r in op.references}
    for needed in depends_on:
        draft.state.relation(needed)
    if depends_on & {i.id for i in draft.state.drop_order(view.id)}:
        raise InvalidValue(f'materialized view "{view.name}" would depend on itself', sqlstate="42P17")
    new_id = draft.new_id()
    new = Replacement(
        new_id, op.sql, op.references, f"{new_id}-{draft.time}", draft.time, op.retain_history_ms
    )
    both = tuple(dict.fromkeys((*_own(view), *new.depends_on)))
    return replace(view, replacement=new, depends_on=both)


def _switched(draft: SourceDraft, op: SwitchQuery) -> MaterializedView:
    view, new = _pending(draft, op.view, op.replacement)
    if view.switching:
        raise InvalidValue(f'materialized view "{view.name}" was switched already')
    history = view.retain_history_ms if new.retain_history_ms is None else new.retain_history_ms
    return replace(
        view,
        sql=new.sql,
        references=new.references,
        depends_on=new.depends_on,
        retain_history_ms=history,
        switched=Switch(new.id, op.at, op.gap_from),
    )


def _ended(draft: SourceDraft, op: EndReplacement) -> MaterializedView:
    view, _ = _pending(draft, op.view, op.replacement)
    if view.switching is not op.done:
        raise InvalidValue(f'materialized view "{view.name}" has the new query already')
    return replace(view, replacement=None, depends_on=_own(view))


def _own(view: MaterializedView) -> tuple[ItemId, ...]:
    """What its own query reads."""
    return tuple(dict.fromkeys(r.id for r in view.references))


def _pending(draft: SourceDraft, view_id: ItemId, new_id: ItemId) -> tuple[MaterializedView, Replacement]:
    view = draft.state.get(view_id, MaterializedView)
    if view.replacement is None or view.replacement.id != new_id:
        raise UndefinedObject(f'the replacement of materialized view "{view.name}" has ended meanwhile')
    return view, view.replacement
