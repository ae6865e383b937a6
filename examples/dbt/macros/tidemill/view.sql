{# A view is replaced where it is: nothing that reads it is dropped. #}
{% materialization view, adapter='postgres' %}
  {% set existing = load_cached_relation(this) %}
  {% set target = this.incorporate(type='view') %}
  {{ tidemill_begin(pre_hooks) }}
  {% if existing is not none and (should_full_refresh() or not existing.is_view) %}
    {% do adapter.drop_relation(existing) %}
    {% set existing = none %}
  {% endif %}
  {% if existing is not none and tidemill_has_query(existing, sql) %}
    {% call noop_statement('main', 'UNCHANGED') %}{{ sql }}{% endcall %}
    {{ tidemill_open() }}
  {% else %}
    {% call statement('main') %}create or replace view {{ target }} as {{ sql }}{% endcall %}
  {% endif %}
  {{ tidemill_end(target, existing, post_hooks) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}
