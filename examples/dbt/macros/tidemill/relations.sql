{# What the materializations of this folder share. Copy the folder into macros/ of your project. #}

{# Whether the view or materialized view has this query already. The server compares: it writes the query of both in
   the same way. #}
{% macro tidemill_has_query(relation, sql) %}
  {% set probe = make_temp_relation(relation).incorporate(path={"schema": relation.schema, "database": relation.database}) %}
  {% do run_query("create view " ~ probe ~ " as " ~ sql) %}
  {% set found = run_query(
    "select (select pg_get_viewdef(oid) from pg_class where oid = '" ~ relation ~ "'::regclass)"
    ~ " = (select pg_get_viewdef(oid) from pg_class where oid = '" ~ probe ~ "'::regclass)") %}
  {% do run_query("drop view " ~ probe) %}
  {{ return(found.columns[0].values()[0]) }}
{% endmacro %}

{# A transaction for what follows the model: comments, grants, hooks. #}
{% macro tidemill_open() %}
  {% call statement('open') %}select 1{% endcall %}
{% endmacro %}

{% macro tidemill_begin(pre_hooks) %}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
{% endmacro %}

{% macro tidemill_end(target, existing, post_hooks) %}
  {% do apply_grants(target, config.get('grants'), should_revoke=should_revoke(existing, full_refresh_mode=False)) %}
  {% do persist_docs(target, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
{% endmacro %}
