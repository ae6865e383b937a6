{# The model is what follows CREATE SOURCE name. A source that exists is left as it is; --full-refresh drops it, with all that reads it, and
   creates it again. #}
{% materialization source, adapter='postgres' %}
  {% set target = this.incorporate(type='table') %}
  {{ tidemill_begin(pre_hooks) }}
  {% if should_full_refresh() %}
    {% do run_query("drop source if exists " ~ target ~ " cascade") %}
  {% endif %}
  {% call statement('main') %}create source if not exists {{ target }} {{ sql }}{% endcall %}
  {{ tidemill_end(target, none, post_hooks) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}
