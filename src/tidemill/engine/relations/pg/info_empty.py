"""The relations of information_schema about objects that Tidemill does not have: domains, triggers,
sequences, foreign tables, routines, user-defined types. They have PostgreSQL's columns and no rows."""

from __future__ import annotations

from tidemill.engine.relations.pg.spec import spec
from tidemill.engine.relations.sources import Spec

_EMPTY: dict[str, str] = {
    "administrable_role_authorizations": "grantee name, role_name name, is_grantable text",
    "attributes": """
        udt_catalog name, udt_schema name, udt_name name, attribute_name name, ordinal_position int4,
        attribute_default text, is_nullable text, data_type text, character_maximum_length int4,
        character_octet_length int4, character_set_catalog name, character_set_schema name,
        character_set_name name, collation_catalog name, collation_schema name, collation_name name,
        numeric_precision int4, numeric_precision_radix int4, numeric_scale int4,
        datetime_precision int4, interval_type text, interval_precision int4, attribute_udt_catalog name,
        attribute_udt_schema name, attribute_udt_name name, scope_catalog name, scope_schema name,
        scope_name name, maximum_cardinality int4, dtd_identifier name,
        is_derived_reference_attribute text""",
    "check_constraint_routine_usage": """
        constraint_catalog name, constraint_schema name, constraint_name name, specific_catalog name,
        specific_schema name, specific_name name""",
    "column_column_usage": """
        table_catalog name, table_schema name, table_name name, column_name name, dependent_column name""",
    "column_domain_usage": """
        domain_catalog name, domain_schema name, domain_name name, table_catalog name, table_schema name,
        table_name name, column_name name""",
    "column_options": """
        table_catalog name, table_schema name, table_name name, column_name name, option_name name,
        option_value text""",
    "domain_constraints": """
        constraint_catalog name, constraint_schema name, constraint_name name, domain_catalog name,
        domain_schema name, domain_name name, is_deferrable text, initially_deferred text""",
    "domain_udt_usage": """
        udt_catalog name, udt_schema name, udt_name name, domain_catalog name, domain_schema name,
        domain_name name""",
    "domains": """
        domain_catalog name, domain_schema name, domain_name name, data_type text,
        character_maximum_length int4, character_octet_length int4, character_set_catalog name,
        character_set_schema name, character_set_name name, collation_catalog name,
        collation_schema name, collation_name name, numeric_precision int4, numeric_precision_radix int4,
        numeric_scale int4, datetime_precision int4, interval_type text, interval_precision int4,
        domain_default text, udt_catalog name, udt_schema name, udt_name name, scope_catalog name,
        scope_schema name, scope_name name, maximum_cardinality int4, dtd_identifier name""",
    "foreign_data_wrapper_options": """
        foreign_data_wrapper_catalog name, foreign_data_wrapper_name name, option_name name,
        option_value text""",
    "foreign_data_wrappers": """
        foreign_data_wrapper_catalog name, foreign_data_wrapper_name name, authorization_identifier name,
        library_name text, foreign_data_wrapper_language text""",
    "foreign_server_options": """
        foreign_server_catalog name, foreign_server_name name, option_name name, option_value text""",
    "foreign_servers": """
        foreign_server_catalog name, foreign_server_name name, foreign_data_wrapper_catalog name,
        foreign_data_wrapper_name name, foreign_server_type text, foreign_server_version text,
        authorization_identifier name""",
    "foreign_table_options": """
        foreign_table_catalog name, foreign_table_schema name, foreign_table_name name, option_name name,
        option_value text""",
    "foreign_tables": """
        foreign_table_catalog name, foreign_table_schema name, foreign_table_name name,
        foreign_server_catalog name, foreign_server_name name""",
    "parameters": """
        specific_catalog name, specific_schema name, specific_name name, ordinal_position int4,
        parameter_mode text, is_result text, as_locator text, parameter_name name, data_type text,
        character_maximum_length int4, character_octet_length int4, character_set_catalog name,
        character_set_schema name, character_set_name name, collation_catalog name,
        collation_schema name, collation_name name, numeric_precision int4, numeric_precision_radix int4,
        numeric_scale int4, datetime_precision int4, interval_type text, interval_precision int4,
        udt_catalog name, udt_schema name, udt_name name, scope_catalog name, scope_schema name,
        scope_name name, maximum_cardinality int4, dtd_identifier name, parameter_default text""",
    "role_routine_grants": """
        grantor name, grantee name, specific_catalog name, specific_schema name, specific_name name,
        routine_catalog name, routine_schema name, routine_name name, privilege_type text,
        is_grantable text""",
    "role_udt_grants": """
        grantor name, grantee name, udt_catalog name, udt_schema name, udt_name name,
        privilege_type text, is_grantable text""",
    "routine_column_usage": """
        specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
        routine_schema name, routine_name name, table_catalog name, table_schema name, table_name name,
        column_name name""",
    "routine_privileges": """
        grantor name, grantee name, specific_catalog name, specific_schema name, specific_name name,
        routine_catalog name, routine_schema name, routine_name name, privilege_type text,
        is_grantable text""",
    "routine_routine_usage": """
        specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
        routine_schema name, routine_name name""",
    "routine_sequence_usage": """
        specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
        routine_schema name, routine_name name, sequence_catalog name, sequence_schema name,
        sequence_name name""",
    "routine_table_usage": """
        specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
        routine_schema name, routine_name name, table_catalog name, table_schema name, table_name name""",
    "routines": """
        specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
        routine_schema name, routine_name name, routine_type text, module_catalog name,
        module_schema name, module_name name, udt_catalog name, udt_schema name, udt_name name,
        data_type text, character_maximum_length int4, character_octet_length int4,
        character_set_catalog name, character_set_schema name, character_set_name name,
        collation_catalog name, collation_schema name, collation_name name, numeric_precision int4,
        numeric_precision_radix int4, numeric_scale int4, datetime_precision int4, interval_type text,
        interval_precision int4, type_udt_catalog name, type_udt_schema name, type_udt_name name,
        scope_catalog name, scope_schema name, scope_name name, maximum_cardinality int4,
        dtd_identifier name, routine_body text, routine_definition text, external_name text,
        external_language text, parameter_style text, is_deterministic text, sql_data_access text,
        is_null_call text, sql_path text, schema_level_routine text, max_dynamic_result_sets int4,
        is_user_defined_cast text, is_implicitly_invocable text, security_type text,
        to_sql_specific_catalog name, to_sql_specific_schema name, to_sql_specific_name name,
        as_locator text, created timestamptz, last_altered timestamptz, new_savepoint_level text,
        is_udt_dependent text, result_cast_from_data_type text, result_cast_as_locator text,
        result_cast_char_max_length int4, result_cast_char_octet_length int4,
        result_cast_char_set_catalog name, result_cast_char_set_schema name,
        result_cast_char_set_name name, result_cast_collation_catalog name,
        result_cast_collation_schema name, result_cast_collation_name name,
        result_cast_numeric_precision int4, result_cast_numeric_precision_radix int4,
        result_cast_numeric_scale int4, result_cast_datetime_precision int4,
        result_cast_interval_type text, result_cast_interval_precision int4,
        result_cast_type_udt_catalog name, result_cast_type_udt_schema name,
        result_cast_type_udt_name name, result_cast_scope_catalog name, result_cast_scope_schema name,
        result_cast_scope_name name, result_cast_maximum_cardinality int4,
        result_cast_dtd_identifier name""",
    "sequences": """
        sequence_catalog name, sequence_schema name, sequence_name name, data_type text,
        numeric_precision int4, numeric_precision_radix int4, numeric_scale int4, start_value text,
        minimum_value text, maximum_value text, increment text, cycle_option text""",
    "transforms": """
        udt_catalog name, udt_schema name, udt_name name, specific_catalog name, specific_schema name,
        specific_name name, group_name name, transform_type text""",
    "triggered_update_columns": """
        trigger_catalog name, trigger_schema name, trigger_name name, event_object_catalog name,
        event_object_schema name, event_object_table name, event_object_column name""",
    "triggers": """
        trigger_catalog name, trigger_schema name, trigger_name name, event_manipulation text,
        event_object_catalog name, event_object_schema name, event_object_table name, action_order int4,
        action_condition text, action_statement text, action_orientation text, action_timing text,
        action_reference_old_table name, action_reference_new_table name, action_reference_old_row name,
        action_reference_new_row name, created timestamptz""",
    "user_defined_types": """
        user_defined_type_catalog name, user_defined_type_schema name, user_defined_type_name name,
        user_defined_type_category text, is_instantiable text, is_final text, ordering_form text,
        ordering_category text, ordering_routine_catalog name, ordering_routine_schema name,
        ordering_routine_name name, reference_type text, data_type text, character_maximum_length int4,
        character_octet_length int4, character_set_catalog name, character_set_schema name,
        character_set_name name, collation_catalog name, collation_schema name, collation_name name,
        numeric_precision int4, numeric_precision_radix int4, numeric_scale int4,
        datetime_precision int4, interval_type text, interval_precision int4, source_dtd_identifier name,
        ref_dtd_identifier name""",
    "user_mapping_options": """
        authorization_identifier name, foreign_server_catalog name, foreign_server_name name,
        option_name name, option_value text""",
    "user_mappings": """
        authorization_identifier name, foreign_server_catalog name, foreign_server_name name""",
}

INFO_EMPTY_SPECS: list[Spec] = [
    spec("information_schema", name, columns, nulls=True) for name, columns in _EMPTY.items()
]
