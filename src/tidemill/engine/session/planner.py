"""The planner: dispatches a parsed statement to the module that plans it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.catalog.state import CatalogState
from tidemill.engine.session.plan import Plan
from tidemill.errors import Internal
from tidemill.sql import ast
from tidemill.sql.parse import ParsedStatement
from tidemill.types.model import SqlType

if TYPE_CHECKING:
    from tidemill.engine.session.session import EngineSession


def plan(
    session: EngineSession,
    parsed: ParsedStatement,
    types: Sequence[SqlType | None],
    catalog: CatalogState,
) -> Plan:
    """Binds the statement against `catalog`. Pure except for the session's variables; raises if the statement
    is invalid."""
    if isinstance(parsed.statement, ast.Prepare):
        from tidemill.engine.session.prepare import plan_prepare

        return plan_prepare(session, parsed.text, parsed.statement, catalog)
    if isinstance(parsed.statement, ast.Declare):
        from tidemill.engine.read.select import plan_declare

        return plan_declare(session, parsed.statement, types, catalog, parsed.text)
    return plan_statement(session, parsed.statement, types, catalog)


def plan_statement(
    s: EngineSession, statement: ast.Statement, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    from tidemill.engine.ddl import comments, secrets
    from tidemill.engine.ddl import connections as connections_ddl
    from tidemill.engine.ddl import materialized_views as materialized_ddl
    from tidemill.engine.ddl import objects as ddl
    from tidemill.engine.ddl import roles as roles_ddl
    from tidemill.engine.ddl import sinks as sinks_ddl
    from tidemill.engine.ddl import sources as sources_ddl
    from tidemill.engine.dml import copy_in
    from tidemill.engine.dml import writes as dml
    from tidemill.engine.read import select, show, show_create
    from tidemill.engine.session import controls, savepoints
    from tidemill.engine.session import prepare as prepared
    from tidemill.engine.session import session_functions as acting
    from tidemill.engine.subscribe import statement as subscribing

    match statement:
        case ast.Query():
            return acting.plan_query(s, statement, types, catalog)
        case ast.Subscribe():
            return subscribing.plan_subscribe(s, statement, types, catalog)
        case ast.Insert():
            return dml.plan_insert(s, statement, types, catalog)
        case ast.Update():
            return dml.plan_update(s, statement, types, catalog)
        case ast.Delete():
            return dml.plan_delete(s, statement, types, catalog)
        case ast.Truncate():
            return dml.plan_truncate(s, statement, catalog)
        case ast.CopyFrom():
            return copy_in.plan_copy_from(s, statement, catalog)
        case ast.CopyTo():
            return select.plan_copy_to(s, statement, types, catalog)
        case ast.Begin():
            return controls.plan_begin(statement)
        case ast.Commit():
            return controls.plan_commit(statement)
        case ast.Rollback():
            return controls.plan_rollback(statement)
        case ast.Savepoint():
            return savepoints.plan_savepoint(statement)
        case ast.ReleaseSavepoint():
            return savepoints.plan_release(statement)
        case ast.RollbackTo():
            return savepoints.plan_rollback_to(statement)
        case ast.Prepare():  # within EXECUTE, as is the next
            return prepared.plan_prepare(s, "", statement, catalog)
        case ast.Declare():
            return select.plan_declare(s, statement, types, catalog, None)
        case ast.Fetch():
            return select.plan_fetch(s, statement)
        case ast.Close():
            return select.plan_close(s, statement)
        case ast.SetVariable():
            return controls.plan_set(statement)
        case ast.ResetVariable():
            return controls.plan_reset(statement)
        case ast.SetTransaction():
            return controls.plan_set_transaction(statement)
        case ast.ShowVariable():
            return show.plan_show_variable(s, statement)
        case ast.ShowObjects():
            return show.plan_show_objects(s, statement, catalog)
        case ast.ShowCreate():
            return show_create.plan_show_create(s, statement, catalog)
        case ast.Explain():
            return select.plan_explain(s, statement, types, catalog)
        case ast.ExplainTimestamp():
            return select.plan_explain_timestamp(s, statement, catalog)
        case ast.Execute():
            return prepared.plan_execute(s, statement, catalog)
        case ast.Deallocate():
            return prepared.plan_deallocate(statement)
        case ast.Discard():
            return controls.plan_discard(statement)
        case ast.AlterSystem():
            return controls.plan_alter_system(statement)
        case ast.NoOp():
            return controls.plan_no_op(s, statement, catalog)
        case ast.CommentOn():
            return comments.plan_comment(s, statement, catalog)
        case ast.CreateTable():
            return ddl.plan_create_table(s, statement, catalog)
        case ast.CreateTableAs():
            return ddl.plan_create_table_as(s, statement, types, catalog)
        case ast.CreateView():
            return ddl.plan_create_view(s, statement, catalog)
        case ast.CreateMaterializedView():
            return materialized_ddl.plan_create_materialized_view(s, statement, catalog)
        case ast.AlterMaterializedView():
            return materialized_ddl.plan_alter_materialized_view(s, statement, catalog)
        case ast.ExplainMaterializedView():
            return materialized_ddl.plan_explain_materialized_view(s, statement, catalog)
        case ast.CreateSource():
            return sources_ddl.plan_create_source(s, statement, catalog)
        case ast.CreateTableFromSource():
            return sources_ddl.plan_create_table_from_source(s, statement, catalog)
        case ast.AlterSource():
            return sources_ddl.plan_alter_source(s, statement, catalog)
        case ast.CreateSink():
            return sinks_ddl.plan_create_sink(s, statement, catalog)
        case ast.CreateSecret():
            return secrets.plan_create_secret(s, statement, catalog)
        case ast.AlterSecret():
            return secrets.plan_alter_secret(s, statement, catalog)
        case ast.CreateConnection():
            return connections_ddl.plan_create_connection(s, statement, catalog)
        case ast.AlterConnection():
            return connections_ddl.plan_alter_connection(s, statement, catalog)
        case ast.CreateSchema():
            return ddl.plan_create_schema(s, statement, catalog)
        case ast.CreateDatabase():
            return ddl.plan_create_database(s, statement, catalog)
        case ast.Drop():
            return ddl.plan_drop(s, statement, catalog)
        case ast.AlterTable():
            return ddl.plan_alter_table(s, statement, catalog)
        case ast.Rename():
            return ddl.plan_rename(s, statement, catalog)
        case _:
            planned = roles_ddl.plan_role(s, statement, catalog)
            if planned is None:
                raise Internal(f"no plan for {type(statement).__name__}")
            return planned


_VERBS: dict[type[ast.Statement], str] = {
    ast.Query: "SELECT",
    ast.CopyFrom: "COPY",
    ast.CopyTo: "COPY",
    ast.ShowVariable: "SHOW",
    ast.ShowObjects: "SHOW",
    ast.ShowCreate: "SHOW",
    ast.Explain: "EXPLAIN",
    ast.ExplainTimestamp: "EXPLAIN",
    ast.ExplainMaterializedView: "EXPLAIN",
    ast.SetVariable: "SET",
    ast.SetTransaction: "SET",
    ast.ResetVariable: "RESET",
    ast.CreateTableAs: "CREATE",
    ast.AlterTable: "ALTER",
    ast.AlterMaterializedView: "ALTER",
    ast.AlterSource: "ALTER",
    ast.AlterSecret: "ALTER",
    ast.AlterConnection: "ALTER",
    ast.Rename: "ALTER",
    ast.AlterSystem: "ALTER",
    ast.AlterRole: "ALTER",
    ast.AlterOwner: "ALTER",
    ast.ReassignOwned: "ALTER",
    ast.DropRole: "DROP",
    ast.DropOwned: "DROP",
    ast.GrantPrivileges: "GRANT",
    ast.GrantRoles: "GRANT",
    ast.CommentOn: "COMMENT",
    ast.ReleaseSavepoint: "RELEASE",
    ast.RollbackTo: "ROLLBACK",
    ast.NoOp: "NOOP",
}


def verb_of(statement: ast.Statement) -> str:
    """The verb for logs and metrics: one of a small fixed set."""
    known = _VERBS.get(type(statement))
    if known is not None:
        return known
    name = type(statement).__name__
    return "CREATE" if name.startswith("Create") else name.upper()
