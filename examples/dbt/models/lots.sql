-- depends_on: {{ ref('house') }}
SELECT a.id, a.item, u.name AS seller
FROM {{ source('house', 'auctions') }} AS a
JOIN {{ source('house', 'users') }} AS u ON u.id = a.seller
