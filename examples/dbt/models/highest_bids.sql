{{ config(materialized='materialized_view', retain_history='2 hours') }}
SELECT l.id, l.item, l.seller, count(*) AS bids, max(b.amount) AS highest
FROM {{ ref('lots') }} AS l
JOIN {{ source('house', 'bids') }} AS b ON b.auction_id = l.id
GROUP BY l.id, l.item, l.seller
