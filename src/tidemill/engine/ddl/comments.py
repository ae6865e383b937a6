"""COMMENT ON. `relations.comments` shows the comments."""

from __future__ import annotations

from tidemill.catalog.comment_ops import SetComment
from tidemill.catalog.items import RELATIONS, Item
from tidemill.catalog.privileges import PermissionDenied
from tidemill.engine.ddl.catalog_changes import CatalogChanges, find
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Plan
from tidemill.errors import UndefinedObject, WrongObjectType
from tidemill.sql import ast


def plan_comment(view: CatalogView, ddl: CatalogChanges, statement: ast.CommentOn) -> Plan:
    item = _item(view, statement)
    column = None if statement.column is None else statement.column.value
    if column is not None:
        _check_column(item, column, statement.name.offset + 1)
    return ddl.change("COMMENT", [SetComment(item.id, column, statement.text)])


def _item(view: CatalogView, statement: ast.CommentOn) -> Item:
    if statement.column is not None:
        item = view.resolver().any_item(statement.name)
        view.privileges().check_owner(item)
        return item
    if statement.kind is None:
        return _role(view, statement.name)
    return find(view, statement.kind, statement.name)


def _role(view: CatalogView, name: ast.Name) -> Item:
    role = view.state.find_role(name.parts[-1])
    if role is None:
        raise UndefinedObject(
            f'role "{name.parts[-1]}" does not exist', sqlstate="42704", position=name.offset + 1
        )
    mine = view.privileges()
    if not mine.superuser and (role.superuser or not mine.role.createrole):
        raise PermissionDenied(
            f'permission denied to comment on role "{role.name}"',
            detail="Only roles with the CREATEROLE attribute, and for superusers those with the SUPERUSER "
            "attribute, may comment on roles.",
        )
    return role


def _check_column(item: Item, column: str, position: int) -> None:
    if not isinstance(item, RELATIONS):
        raise WrongObjectType(f'"{item.name}" has no columns', position=position)
    if item.desc is None or column not in item.desc.names:
        raise UndefinedObject(
            f'column "{column}" of relation "{item.name}" does not exist', sqlstate="42703", position=position
        )
