{# The model is what follows CREATE SINK name. A sink that exists is left as it is; --full-refresh drops it and creates it again. #}
{% materialization sink, adapter='postgres' %}
  {% set target = this.incorporate(type='external') %}
  {{ tidemill_begin(pre_hooks) }}
  {% if should_full_refresh() %}
    {% do run_query("drop sink if exists " ~ target) %}
  {% endif %}
  {% call statement('main') %}create sink if not exists {{ target }} {{ sql }}{% endcall %}
  {{ tidemill_end(target, none, post_hooks) }}
  {{ return({'relations': []}) }}
{% endmaterialization %}
