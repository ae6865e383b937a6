"""The planner: dispatches a parsed statement to the module that plans it, with the parts of the session that
the statement works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemill.catalog.state import CatalogState
from tidemill.engine.ddl import comments, secrets, subsources
from tidemill.engine.ddl import connections as connections_ddl
from tidemill.engine.ddl import materialized_views as materialized_ddl
from tidemill.engine.ddl import objects as ddl
from tidemill.engine.ddl import roles as roles_ddl
from tidemill.engine.ddl import sinks as sinks_ddl
from tidemill.engine.ddl import sources as sources_ddl
from tidemill.engine.ddl import subscriptions as subscriptions_ddl
from tidemill.engine.ddl.catalog_changes import CatalogChanges
from tidemill.engine.dml import copy_in
from tidemill.engine.dml import writes as dml
from tidemill.engine.read import location, select, show, show_create
from tidemill.engine.session import controls, savepoints
from tidemill.engine.session import prepare as prepared
from tidemill.engine.session import session_functions as acting
from tidemill.engine.session.backends import Backends
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.engine.subscribe import durable
from tidemill.engine.subscribe import statement as subscribing
from tidemill.errors import Internal
from tidemill.sql import ast
from tidemill.sql.parse import ParsedStatement
from tidemill.types.model import SqlType

if TYPE_CHECKING:
    from tidemill.engine.session.session import EngineSession


# Statements that change the catalog and need nothing else; the last argument is of the class on the left.
_CHANGES: dict[type[ast.Statement], Callable[[CatalogView, CatalogChanges, Any], Plan]] = {
    ast.CommentOn: comments.plan_comment,
    ast.CreateTable: ddl.plan_create_table,
    ast.CreateView: ddl.plan_create_view,
    ast.CreateSchema: ddl.plan_create_schema,
    ast.CreateDatabase: ddl.plan_create_database,
    ast.Drop: ddl.plan_drop,
    ast.Rename: ddl.plan_rename,
    ast.CreateRole: roles_ddl.plan_create_role,
    ast.AlterRole: roles_ddl.plan_alter_role,
    ast.DropRole: roles_ddl.plan_drop_role,
    ast.GrantRoles: roles_ddl.plan_grant_roles,
    ast.GrantPrivileges: roles_ddl.plan_grant_privileges,
    ast.AlterOwner: roles_ddl.plan_alter_owner,
    ast.ReassignOwned: roles_ddl.plan_reassign_owned,
    ast.DropOwned: roles_ddl.plan_drop_owned,
}


def plan(
    s: EngineSession, parsed: ParsedStatement, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    """Binds the statement against `catalog`. Pure except for the session's variables; raises if the statement
    is invalid."""
    view, reader, settings = s.view(catalog), s.reader, s.settings
    external, statement = s.engine.external, parsed.statement

    def within(other: ast.Statement, types: Sequence[SqlType | None]) -> Plan:
        """The plan of a statement within this one: of PREPARE, EXECUTE."""
        return plan(s, ParsedStatement(other, "", 0), types, catalog)

    match statement:
        case ast.Query():
            backends = Backends(view, s.execution.notice, s.engine.session)
            on = acting.CallTargets(s.interrupt, settings, backends)
            return acting.plan_query(view, reader, on, statement, types)
        case ast.Subscribe():
            return subscribing.plan_subscribe(view, reader, statement, types)
        case ast.Insert():
            return dml.plan_insert(view, s.writer, statement, types)
        case ast.Update():
            return dml.plan_update(view, s.writer, statement, types)
        case ast.Delete():
            return dml.plan_delete(view, s.writer, statement, types)
        case ast.Truncate():
            return dml.plan_truncate(view, s.writer, statement)
        case ast.CopyFrom():
            return copy_in.plan_copy_from(view, s.writer, statement)
        case ast.CopyTo():
            return select.plan_copy_to(view, reader, statement, types)
        case ast.Begin():
            return Action(partial(controls.begin, settings, statement))
        case ast.Commit():
            return Action(partial(controls.commit, settings, statement))
        case ast.Rollback():
            return Action(partial(controls.rollback, settings, statement))
        case ast.Savepoint():
            return Action(partial(savepoints.savepoint, settings, s.portals, statement))
        case ast.ReleaseSavepoint():
            return Action(partial(savepoints.release, s.transactions, statement))
        case ast.RollbackTo():
            return Action(partial(savepoints.rollback_to, settings, s.portals, statement))
        case ast.Prepare():
            return prepared.plan_prepare(s.preparer, within, parsed.text, statement)
        case ast.Declare():
            return select.plan_declare(view, reader, s.portals, statement, types, parsed.text or None)
        case ast.Fetch():
            return select.plan_fetch(s.portals, s.interrupt, s.run, statement)
        case ast.Close():
            return Action(partial(select.close_cursor, s.portals, statement))
        case ast.SetVariable():
            return Action(partial(controls.set_variable, settings, statement))
        case ast.ResetVariable():
            return Action(partial(controls.reset_variable, settings, statement))
        case ast.SetTransaction():
            return Action(partial(controls.set_transaction, settings, statement))
        case ast.ShowVariable():
            return show.plan_show_variable(s.variables, s.engine.parameters, statement)
        case ast.ShowObjects():
            return show.plan_show_objects(view, reader, statement)
        case ast.ShowCreate():
            return show_create.plan_show_create(view, statement)
        case ast.ShowLocation():
            return location.plan_show_location(view, reader, statement, types)
        case ast.Explain():
            return select.plan_explain(view, reader, statement, types)
        case ast.ExplainTimestamp():
            return select.plan_explain_timestamp(view, reader, statement)
        case ast.Execute():
            return prepared.plan_execute(view, reader, s.statements, within, statement)
        case ast.Deallocate():
            return Action(partial(prepared.deallocate, s.statements, statement))
        case ast.Discard():
            return Action(partial(controls.discard, settings, s.statements, s.portals, s.readings, statement))
        case ast.AlterSystem():
            return Action(partial(controls.alter_system, view, s.ddl, statement))
        case ast.NoOp():
            return controls.plan_no_op(view, s.transactions, statement)
        case ast.CreateTableAs():
            return ddl.plan_create_table_as(view, s.ddl, s.writer, statement, types)
        case ast.CreateMaterializedView():
            return materialized_ddl.plan_create_materialized_view(view, s.ddl, reader.readiness, statement)
        case ast.AlterMaterializedView():
            return materialized_ddl.plan_alter_materialized_view(view, s.ddl, reader.readiness, statement)
        case ast.ExplainMaterializedView():
            return materialized_ddl.plan_explain_materialized_view(view, s.execution, statement)
        case ast.CreateSource():
            return sources_ddl.plan_create_source(view, s.ddl, external, statement)
        case ast.CreateTableFromSource():
            return sources_ddl.plan_create_table_from_source(view, s.ddl, external, statement)
        case ast.AlterSource():
            return sources_ddl.plan_alter_source(view, s.ddl, external, statement)
        case ast.AddSubsources():
            return subsources.plan_add_subsources(view, s.ddl, external, statement)
        case ast.DropSubsources():
            return subsources.plan_drop_subsources(view, s.ddl, statement)
        case ast.CreateSink():
            return sinks_ddl.plan_create_sink(view, s.ddl, reader.runtime.collections, external, statement)
        case ast.CreateSubscription():
            return subscriptions_ddl.plan_create_subscription(view, s.ddl, statement)
        case ast.ResetSubscription():
            return subscriptions_ddl.plan_reset_subscription(
                view, s.ddl, s.engine.durable, s.readings, statement
            )
        case ast.FetchSubscription() | ast.ReadSubscription():
            return durable.plan_fetch_subscription(
                view, reader, s.engine.durable, s.readings, statement, types
            )
        case ast.Acknowledge():
            return durable.plan_acknowledge(view, reader, s.engine.durable, s.readings, statement, types)
        case ast.CreateSecret():
            return secrets.plan_create_secret(view, s.ddl, external.secrets, statement)
        case ast.AlterSecret():
            return secrets.plan_alter_secret(view, s.ddl, external.secrets, statement)
        case ast.CreateConnection():
            return connections_ddl.plan_create_connection(view, s.ddl, external.secrets, statement)
        case ast.AlterConnection():
            return connections_ddl.plan_alter_connection(view, s.ddl, external.secrets, statement)
        case ast.AlterTable():
            return ddl.plan_alter_table(view, s.ddl, s.writer, statement)
        case _:
            planned = _CHANGES.get(type(statement))
            if planned is None:
                raise Internal(f"no plan for {type(statement).__name__}")
            return planned(view, s.ddl, statement)
