{{ config(materialized='sink', enabled=var('sink_folder', '') != '') }}
FROM {{ ref('highest_bids') }}
INTO FILES '{{ var("sink_folder", "") }}'
FORMAT JSON ENVELOPE MATERIALIZE
