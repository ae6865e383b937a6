{# A materialized view gets a changed query where it is, at one time, with its history, readers and sinks; an unchanged one is left alone.
   Options: retain_history ('1 day'), incremental ('required'). #}
{% materialization materialized_view, adapter='postgres' %}
  {% set existing = load_cached_relation(this) %}
  {% set target = this.incorporate(type=this.MaterializedView) %}
  {% set options = [] %}
  {% if config.get('retain_history') %}{% do options.append("retain history for '" ~ config.get('retain_history') ~ "'") %}{% endif %}
  {% if config.get('incremental') %}{% do options.append("incremental = '" ~ config.get('incremental') ~ "'") %}{% endif %}
  {{ tidemill_begin(pre_hooks) }}
  {% if existing is not none and (should_full_refresh() or not existing.is_materialized_view) %}
    {% do adapter.drop_relation(existing) %}
    {% set existing = none %}
  {% endif %}
  {% if existing is not none and tidemill_has_query(existing, sql) %}
    {% call noop_statement('main', 'UNCHANGED') %}{{ sql }}{% endcall %}
    {{ tidemill_open() }}
  {% else %}
    {% call statement('main') %}
      create or replace materialized view {{ target }}
      {%- if options %} with ({{ options | join(', ') }}){% endif %} as {{ sql }}
    {% endcall %}
  {% endif %}
  {{ tidemill_end(target, existing, post_hooks) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}
