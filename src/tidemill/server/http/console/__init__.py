"""The console: the pages at `/` of the HTTP port, for people who would rather look than read.

A browser runs it. `files` serves its files from the package: there is no build step, and no request leaves
the machine. It asks the server by `POST /api/sql` and `GET /api/subscribe` alone, with the role and the
password that the browser has for this address, so it can do and see what any client of that role can.
`static/main.js` is where to begin reading, `static/vendor` holds the libraries of others.

Called by `app`. Promises: a page that nobody looks at (a closed or hidden tab) asks for nothing.
"""
