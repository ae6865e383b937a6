{# The rows of a table are exchanged in one transaction: readers see all new rows or all old ones, and what reads the table stays and sees
   the difference. Other columns need --full-refresh. #}
{% materialization table, adapter='postgres' %}
  {% set existing = load_cached_relation(this) %}
  {% set target = this.incorporate(type='table') %}
  {{ tidemill_begin(pre_hooks) }}
  {% if existing is not none and (should_full_refresh() or not existing.is_table) %}
    {% do adapter.drop_relation(existing) %}
    {% set existing = none %}
  {% endif %}
  {% if existing is none %}
    {% call statement('main') %}create table {{ target }} as {{ sql }}{% endcall %}
  {% else %}
    {% call statement('delete') %}delete from {{ target }}{% endcall %}
    {% call statement('main') %}insert into {{ target }} {{ sql }}{% endcall %}
    {{ adapter.commit() }}
    {{ tidemill_open() }}
  {% endif %}
  {{ tidemill_end(target, existing, post_hooks) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}
