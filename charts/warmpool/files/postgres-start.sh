# Starts the bundled Postgres. The image uses POSTGRES_PASSWORD only to fill an empty volume. Here the
# password of the Secret is set at every start, so that the volume of an earlier installation works.
# Single-user mode needs no password, and opens neither a port nor a socket.
set -eu
trap 'exit 143' TERM INT
if [ -s "$PGDATA/PG_VERSION" ]; then
    # When a new pod mounts the volume, the kubelet gives the group every right (fsGroup). Postgres
    # refuses to start with these.
    chmod 0700 "$PGDATA"
    quoted=$(printf %s "$POSTGRES_PASSWORD" | sed "s/'/''/g")
    printf "ALTER ROLE \"%s\" PASSWORD '%s'\n" "$POSTGRES_USER" "$quoted" |
        postgres --single -D "$PGDATA" -c exit_on_error=on -c log_min_messages=fatal \
            -c log_min_error_statement=panic "$POSTGRES_DB" > /dev/null
fi
exec docker-entrypoint.sh postgres
