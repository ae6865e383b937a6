{{ config(materialized='table') }}
SELECT currency, round(100 / rate, 2) AS hundred_dollars FROM {{ ref('rates') }}
