/* Every kind of call that ZooKeeper's C client has. See checks.py for what is printed, and how. */

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

#define PATIENCE 30
#define TIMEOUT 50000

static void fail(const char *name, const char *got, const char *expected) {
    printf("DIFFERENT %s: got %s, expected %s\n", name, got, expected);
    fflush(stdout);
    _exit(1);
}

static void check_text(const char *name, const char *got, const char *expected) {
    if (strcmp(got, expected) != 0)
        fail(name, got, expected);
    printf("%s: %s\n", name, got);
    fflush(stdout);
}

static void check(const char *name, long got, long expected) {
    char left[32], right[32];
    snprintf(left, sizeof left, "%ld", got);
    snprintf(right, sizeof right, "%ld", expected);
    check_text(name, left, right);
}

/* What the server has answered, in words. */
static void check_code(const char *name, int got, int expected) {
    check_text(name, zerror(got), zerror(expected));
}

/* Events and states, as they come in. */
struct told {
    pthread_mutex_t lock;
    pthread_cond_t more;
    char text[4096];
};

static struct told *new_told(void) {
    struct told *told = calloc(1, sizeof *told);
    pthread_mutex_init(&told->lock, NULL);
    pthread_cond_init(&told->more, NULL);
    return told;
}

static const char *state_name(int state) {
    if (state == ZOO_CONNECTED_STATE) return "connected";
    if (state == ZOO_CONNECTING_STATE) return "connecting";
    if (state == ZOO_ASSOCIATING_STATE) return "associating";
    if (state == ZOO_EXPIRED_SESSION_STATE) return "expired";
    if (state == ZOO_AUTH_FAILED_STATE) return "auth failed";
    return "another state";
}

static const char *event_name(int type) {
    if (type == ZOO_CREATED_EVENT) return "created";
    if (type == ZOO_DELETED_EVENT) return "deleted";
    if (type == ZOO_CHANGED_EVENT) return "changed";
    if (type == ZOO_CHILD_EVENT) return "child";
    if (type == ZOO_NOTWATCHING_EVENT) return "not watching";
    return "another event";
}

static void watcher(zhandle_t *zh, int type, int state, const char *path, void *context) {
    struct told *told = context != NULL ? context : (struct told *)zoo_get_context(zh);
    /* The watchers of paths are told of states, too: that is the client's business. */
    if (type == ZOO_SESSION_EVENT && context != NULL && context != zoo_get_context(zh))
        return;
    pthread_mutex_lock(&told->lock);
    size_t used = strlen(told->text);
    if (type == ZOO_SESSION_EVENT)
        snprintf(told->text + used, sizeof told->text - used, "%s; ", state_name(state));
    else
        snprintf(told->text + used, sizeof told->text - used, "%s %s; ", event_name(type), path);
    pthread_cond_broadcast(&told->more);
    pthread_mutex_unlock(&told->lock);
}

/* Waits until all this has been told, and nothing else. */
static void wait_told(const char *name, struct told *told, const char *expected) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE;
    pthread_mutex_lock(&told->lock);
    while (strlen(told->text) < strlen(expected))
        if (pthread_cond_timedwait(&told->more, &told->lock, &end) != 0)
            break;
    check_text(name, told->text, expected);
    told->text[0] = 0;
    pthread_mutex_unlock(&told->lock);
}

static zhandle_t *open_session(const char *hosts, const clientid_t *id, struct told *told) {
    zhandle_t *zh = zookeeper_init(hosts, watcher, TIMEOUT, id, told, 0);
    if (zh == NULL)
        fail("zookeeper_init", "nothing", "a handle");
    return zh;
}

static zhandle_t *connected(const char *hosts, struct told *told) {
    zhandle_t *zh = open_session(hosts, NULL, told);
    wait_told("a session", told, "connected; ");
    return zh;
}

/* An order to the wire: see wire.py. */
static void order(const char *word) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(getenv("CONTROL")))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    char answer[256] = "";
    int wire = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(wire, (struct sockaddr *)&to, sizeof to) != 0 || dprintf(wire, "%s\n", word) < 0
        || read(wire, answer, sizeof answer - 1) <= 0)
        fail(word, "no answer", "ok");
    close(wire);
    check_text(word, answer, "ok\n");
}

static struct ACL_vector *OPEN = &ZOO_OPEN_ACL_UNSAFE;

static const char *shape(const struct Stat *stat) {
    static char text[128];
    snprintf(text, sizeof text, "version %d, cversion %d, aversion %d, %d bytes, %d children", stat->version,
             stat->cversion, stat->aversion, stat->dataLength, stat->numChildren);
    return text;
}

static void creating(zhandle_t *zh) {
    char path[128];
    struct Stat stat;
    check_code("create", zoo_create(zh, "/c", "data", 4, OPEN, 0, path, sizeof path), ZOK);
    check_text("its path", path, "/c");
    check_code("again", zoo_create(zh, "/c", "", 0, OPEN, 0, NULL, 0), ZNODEEXISTS);
    check_code("no parent", zoo_create(zh, "/no/x", "", 0, OPEN, 0, NULL, 0), ZNONODE);
    check_code("numbered", zoo_create(zh, "/c/n-", "", 0, OPEN, ZOO_PERSISTENT_SEQUENTIAL, path, sizeof path), ZOK);
    check_text("its path", path, "/c/n-0000000000");
    check_code("ephemeral", zoo_create(zh, "/c/e", "", 0, OPEN, ZOO_EPHEMERAL, path, sizeof path), ZOK);
    check_code("below it", zoo_create(zh, "/c/e/x", "", 0, OPEN, 0, NULL, 0), ZNOCHILDRENFOREPHEMERALS);
    check_code("create2", zoo_create2(zh, "/c/2-", "12345", 5, OPEN, ZOO_EPHEMERAL_SEQUENTIAL, path, sizeof path, &stat), ZOK);
    check_text("its path", path, "/c/2-0000000002");
    check_text("its stat", shape(&stat), "version 0, cversion 0, aversion 0, 5 bytes, 0 children");
    check("its owner", stat.ephemeralOwner == zoo_client_id(zh)->client_id, 1);
    check_code("container", zoo_create(zh, "/c/container", "", 0, OPEN, ZOO_CONTAINER, path, sizeof path), ZOK);
    check_code("TTL", zoo_create_ttl(zh, "/c/ttl", "x", 1, OPEN, ZOO_PERSISTENT_WITH_TTL, 60000, path, sizeof path), ZOK);
    check_code("TTL and number", zoo_create2_ttl(zh, "/c/ttl-", "x", 1, OPEN, ZOO_PERSISTENT_SEQUENTIAL_WITH_TTL, 60000,
                                                 path, sizeof path, &stat), ZOK);
    check_text("its path", path, "/c/ttl-0000000005");
    check("it has no owner", stat.ephemeralOwner, 0);
    check_code("a TTL of 0", zoo_create_ttl(zh, "/c/ttl0", "x", 1, OPEN, ZOO_PERSISTENT_WITH_TTL, 0, NULL, 0), ZBADARGUMENTS);
    check_code("a bad path", zoo_create(zh, "/c//x", "", 0, OPEN, 0, NULL, 0), ZBADARGUMENTS);
    struct ACL_vector none = {0, NULL};
    check_code("no rights", zoo_create(zh, "/c/acl", "", 0, &none, 0, NULL, 0), ZINVALIDACL);
    check_code("null data", zoo_create(zh, "/c/null", NULL, -1, OPEN, 0, NULL, 0), ZOK);
    check_code("its stat", zoo_exists(zh, "/c/null", 0, &stat), ZOK);
    check_text("its stat", shape(&stat), "version 0, cversion 0, aversion 0, 0 bytes, 0 children");
    /* A TTL node that is due goes, and so does a container that has been used. */
    struct told *told = new_told();
    check_code("a short TTL", zoo_create_ttl(zh, "/c/short", "x", 1, OPEN, ZOO_PERSISTENT_WITH_TTL, 100, NULL, 0), ZOK);
    int there = zoo_wexists(zh, "/c/short", watcher, told, NULL);
    if (there == ZOK)
        wait_told("it goes", told, "deleted /c/short; ");
    else
        printf("it goes: deleted /c/short; \n");
    check_code("used", zoo_create(zh, "/c/container/x", "", 0, OPEN, 0, NULL, 0), ZOK);
    check_code("watched", zoo_wexists(zh, "/c/container", watcher, told, NULL), ZOK);
    check_code("empty", zoo_delete(zh, "/c/container/x", -1), ZOK);
    wait_told("a container goes", told, "deleted /c/container; ");
}

static void reading_and_writing(zhandle_t *zh) {
    char data[64];
    int length = sizeof data;
    struct Stat stat;
    struct String_vector names;
    check_code("create", zoo_create(zh, "/r", "one", 3, OPEN, 0, NULL, 0), ZOK);
    check_code("get", zoo_get(zh, "/r", 0, data, &length, &stat), ZOK);
    check("its length", length, 3);
    check("its data", memcmp(data, "one", 3), 0);
    check_code("set", zoo_set(zh, "/r", "two!", 4, 0), ZOK);
    check_code("set of a wrong version", zoo_set(zh, "/r", "", 0, 0), ZBADVERSION);
    check_code("set2", zoo_set2(zh, "/r", "three", 5, 1, &stat), ZOK);
    check_text("its stat", shape(&stat), "version 2, cversion 0, aversion 0, 5 bytes, 0 children");
    check_code("get of nothing", zoo_get(zh, "/none", 0, data, &length, &stat), ZNONODE);
    check_code("exists of nothing", zoo_exists(zh, "/none", 0, &stat), ZNONODE);
    check_code("create", zoo_create(zh, "/r/x", "", 0, OPEN, 0, NULL, 0), ZOK);
    check_code("get_children", zoo_get_children(zh, "/r", 0, &names), ZOK);
    check("how many", names.count, 1);
    check_text("the child", names.data[0], "x");
    deallocate_String_vector(&names);
    check_code("get_children2", zoo_get_children2(zh, "/r", 0, &names, &stat), ZOK);
    check_text("and the stat", shape(&stat), "version 2, cversion 1, aversion 0, 5 bytes, 1 children");
    deallocate_String_vector(&names);
    check_code("delete with children", zoo_delete(zh, "/r", -1), ZNOTEMPTY);
    check_code("delete of a wrong version", zoo_delete(zh, "/r/x", 4), ZBADVERSION);
    check_code("delete", zoo_delete(zh, "/r/x", 0), ZOK);
    check_code("delete of nothing", zoo_delete(zh, "/r/x", -1), ZNONODE);
    length = sizeof data;
    check_code("getconfig", zoo_getconfig(zh, 0, data, &length, &stat), ZOK);
    length = sizeof data;
    check_code("reconfig", zoo_reconfig(zh, NULL, NULL, "server.1=localhost:1:2;3", -1, data, &length, &stat), ZUNIMPLEMENTED);
}

static void transactions(zhandle_t *zh) {
    char made[64], numbered[64];
    struct Stat set;
    zoo_op_t ops[5];
    zoo_op_result_t results[5];
    memset(results, 0, sizeof results);
    zoo_create_op_init(&ops[0], "/t", "t", 1, OPEN, 0, made, sizeof made);
    zoo_create_op_init(&ops[1], "/t/n-", "", 0, OPEN, ZOO_SEQUENCE, numbered, sizeof numbered);
    zoo_check_op_init(&ops[2], "/t", 0);
    zoo_set_op_init(&ops[3], "/t", "more", 4, 0, &set);
    zoo_delete_op_init(&ops[4], "/t/n-0000000000", -1);
    check_code("multi", zoo_multi(zh, 5, ops, results), ZOK);
    check_text("made", made, "/t");
    check_text("numbered", numbered, "/t/n-0000000000");
    check_text("set", shape(&set), "version 1, cversion 1, aversion 0, 4 bytes, 1 children");
    zoo_create_op_init(&ops[0], "/t/first", "", 0, OPEN, 0, made, sizeof made);
    zoo_check_op_init(&ops[1], "/t", 9);
    zoo_delete_op_init(&ops[2], "/t", -1);
    check_code("a multi that fails", zoo_multi(zh, 3, ops, results), ZBADVERSION);
    check_code("before the failure", results[0].err, ZOK);
    check_code("the failure", results[1].err, ZBADVERSION);
    check_code("behind it", results[2].err, ZRUNTIMEINCONSISTENCY);
    check_code("nothing came of it", zoo_exists(zh, "/t/first", 0, &set), ZNONODE);
}

static void watching(zhandle_t *zh, zhandle_t *other) {
    char data[16];
    int length = sizeof data;
    struct String_vector names;
    struct told *one = new_told(), *two = new_told(), *three = new_told();
    check_code("create", zoo_create(zh, "/w", "", 0, OPEN, 0, NULL, 0), ZOK);
    check_code("wget", zoo_wget(zh, "/w", watcher, one, data, &length, NULL), ZOK);
    check_code("wexists", zoo_wexists(zh, "/w/x", watcher, two, NULL), ZNONODE);
    check_code("wget_children", zoo_wget_children(zh, "/w", watcher, three, &names), ZOK);
    deallocate_String_vector(&names);
    check_code("set", zoo_set(other, "/w", "1", 1, -1), ZOK);
    check_code("create", zoo_create(other, "/w/x", "", 0, OPEN, 0, NULL, 0), ZOK);
    wait_told("data", one, "changed /w; ");
    wait_told("exists", two, "created /w/x; ");
    wait_told("children", three, "child /w; ");
    check_code("wexists", zoo_wexists(zh, "/w/x", watcher, one, NULL), ZOK);
    check_code("wget_children2", zoo_wget_children2(zh, "/w/x", watcher, two, &names, &(struct Stat){0}), ZOK);
    check_code("delete", zoo_delete(other, "/w/x", -1), ZOK);
    wait_told("exists of what goes", one, "deleted /w/x; ");
    wait_told("children of what goes", two, "deleted /w/x; ");
    check_code("wget", zoo_wget(zh, "/w", watcher, one, data, &length, NULL), ZOK);
    check_code("remove_watches", zoo_remove_watches(zh, "/w", ZWATCHTYPE_DATA, watcher, one, 0), ZOK);
    check_code("again", zoo_remove_watches(zh, "/w", ZWATCHTYPE_DATA, watcher, one, 0), ZNOWATCHER);
    check_code("wget_children", zoo_wget_children(zh, "/w", watcher, three, &names), ZOK);
    check_code("wexists", zoo_wexists(zh, "/w", watcher, one, NULL), ZOK);
    check_code("remove_all_watches", zoo_remove_all_watches(zh, "/w", ZWATCHTYPE_ANY, 0), ZOK);
    check_code("again", zoo_remove_all_watches(zh, "/w", ZWATCHTYPE_ANY, 0), ZNOWATCHER);
    check_code("set", zoo_set(other, "/w", "1", 1, -1), ZOK);
    check_code("create", zoo_create(other, "/w/y", "", 0, OPEN, 0, NULL, 0), ZOK);
    check_code("wexists", zoo_wexists(zh, "/w", watcher, two, NULL), ZOK);
    check_code("set", zoo_set(other, "/w", "2", 1, -1), ZOK);
    wait_told("the one that is left", two, "changed /w; ");
    check_text("nothing of the others", one->text, "");
    check_text("nothing of the others", three->text, "");
}

static void authenticated(int rc, const void *data) {
    struct told *told = (struct told *)data;
    pthread_mutex_lock(&told->lock);
    snprintf(told->text, sizeof told->text, "%s; ", zerror(rc));
    pthread_cond_broadcast(&told->more);
    pthread_mutex_unlock(&told->lock);
}

static void rights(zhandle_t *zh, zhandle_t *other, const char *hosts) {
    struct told *told = new_told(), *states = new_told();
    struct ACL_vector acl;
    struct Stat stat;
    check_code("not proven", zoo_create(zh, "/a", "", 0, &ZOO_CREATOR_ALL_ACL, 0, NULL, 0), ZINVALIDACL);
    check_code("add_auth", zoo_add_auth(zh, "digest", "fred:secret", 11, authenticated, told), ZOK);
    wait_told("add_auth", told, "ok; ");
    check_code("create", zoo_create(zh, "/a", "", 0, &ZOO_CREATOR_ALL_ACL, 0, NULL, 0), ZOK);
    check_code("get_acl", zoo_get_acl(zh, "/a", &acl, &stat), ZOK);
    check("entries", acl.count, 1);
    check_text("scheme", acl.data[0].id.scheme, "digest");
    check_text("id", acl.data[0].id.id, "fred:lVt6OABBJX49qC19kt5J5OU3Neo=");
    deallocate_ACL_vector(&acl);
    check_code("another's set", zoo_set(other, "/a", "", 0, -1), ZNOAUTH);
    check_code("another's get_acl", zoo_get_acl(other, "/a", &acl, &stat), ZNOAUTH);
    check_code("set_acl of a wrong version", zoo_set_acl(zh, "/a", 7, &ZOO_READ_ACL_UNSAFE), ZBADVERSION);
    check_code("set_acl", zoo_set_acl(zh, "/a", 0, &ZOO_READ_ACL_UNSAFE), ZOK);
    check_code("another's get_acl", zoo_get_acl(other, "/a", &acl, &stat), ZOK);
    check_text("scheme", acl.data[0].id.scheme, "world");
    check("rights", acl.data[0].perms, ZOO_PERM_READ);
    deallocate_ACL_vector(&acl);
    zhandle_t *fails = connected(hosts, states);
    check_code("add_auth", zoo_add_auth(fails, "none", "x", 1, authenticated, told), ZOK);
    wait_told("a scheme that is none", told, "authentication failed; ");
    wait_told("the session", states, "auth failed; ");
    check("is unrecoverable", is_unrecoverable(fails), ZINVALIDSTATE);
    zookeeper_close(fails);
}

/* Hundreds of calls under way; each completion must find its own answer, in turn. */
struct flood {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int next, wrong;
};
static struct flood flood = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

static void arrived(long number, int is_right) {
    pthread_mutex_lock(&flood.lock);
    if (number != flood.next++ || !is_right)
        flood.wrong++;
    pthread_cond_broadcast(&flood.more);
    pthread_mutex_unlock(&flood.lock);
}

static void made(int rc, const char *name, const void *data) {
    char expected[32];
    snprintf(expected, sizeof expected, "/f/%ld", (long)data / 2);
    arrived((long)data, rc == ZOK && strcmp(name, expected) == 0);
}

static void got(int rc, const char *value, int length, const struct Stat *stat, const void *data) {
    char expected[32];
    snprintf(expected, sizeof expected, "%ld", (long)data / 2);
    arrived((long)data, rc == ZOK && length == (int)strlen(expected) && memcmp(value, expected, length) == 0
                            && stat->numChildren == 0);
}

static void made2(int rc, const char *name, const struct Stat *stat, const void *data) {
    arrived((long)data, rc == ZOK && stat->dataLength == 3 && strncmp(name, "/f/2-", 5) == 0);
}

static void synced(int rc, const char *path, const void *data) {
    arrived((long)data, rc == ZOK && strcmp(path, "/f") == 0);
}

static void deleted(int rc, const void *data) {
    arrived((long)data, rc == ZNONODE);
}

static void pipelining(zhandle_t *zh) {
    check_code("create", zoo_create(zh, "/f", "", 0, OPEN, 0, NULL, 0), ZOK);
    for (long number = 0; number < 2000; number += 2) {
        char path[32], value[32];
        snprintf(path, sizeof path, "/f/%ld", number / 2);
        snprintf(value, sizeof value, "%ld", number / 2);
        zoo_acreate(zh, path, value, strlen(value), OPEN, 0, made, (void *)number);
        zoo_aget(zh, path, 0, got, (void *)(number + 1));
    }
    zoo_acreate2(zh, "/f/2-", "abc", 3, OPEN, ZOO_SEQUENCE, made2, (void *)2000);
    zoo_async(zh, "/f", synced, (void *)2001);
    zoo_adelete(zh, "/f/none", -1, deleted, (void *)2002);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE;
    pthread_mutex_lock(&flood.lock);
    while (flood.next < 2003 && pthread_cond_timedwait(&flood.more, &flood.lock, &end) == 0)
        continue;
    check("answers", flood.next, 2003);
    check("wrong ones", flood.wrong, 0);
    pthread_mutex_unlock(&flood.lock);
}

/* The same client id by another handle; connections that break, and servers that go. */
static void sessions(const char *hosts, const char *wire) {
    struct told *states = new_told(), *again = new_told(), *watch = new_told(), *exists = new_told(), *child = new_told();
    char data[16];
    int length = sizeof data;
    struct String_vector names;
    zhandle_t *other = connected(hosts, new_told());
    zhandle_t *zh = connected(wire, states);
    clientid_t id = *zoo_client_id(zh);
    check("timeout", zoo_recv_timeout(zh), TIMEOUT);
    check_code("create", zoo_create(zh, "/s", "", 0, OPEN, 0, NULL, 0), ZOK);
    check_code("create", zoo_create(zh, "/s/e", "", 0, OPEN, ZOO_EPHEMERAL, NULL, 0), ZOK);
    check_code("wget", zoo_wget(zh, "/s", watcher, watch, data, &length, NULL), ZOK);
    check_code("wexists", zoo_wexists(zh, "/s/new", watcher, exists, NULL), ZNONODE);
    check_code("wget_children", zoo_wget_children(zh, "/s/e", watcher, child, &names), ZOK);
    order("cut");
    wait_told("the connection breaks", states, "connecting; ");
    check_code("changed meanwhile", zoo_set(other, "/s", "x", 1, -1), ZOK);
    check_code("made meanwhile", zoo_create(other, "/s/new", "", 0, OPEN, 0, NULL, 0), ZOK);
    order("heal");
    wait_told("and comes back", states, "connected; ");
    wait_told("data", watch, "changed /s; ");
    wait_told("exists", exists, "created /s/new; ");
    check("the same session", zoo_client_id(zh)->client_id == id.client_id, 1);
    order("drop");
    wait_told("again", states, "connecting; connected; ");
    check_text("unchanged children say nothing", child->text, "");
    check_code("delete", zoo_delete(other, "/s/e", -1), ZOK);
    wait_told("children whose watch was armed again", child, "deleted /s/e; ");
    check_code("create", zoo_create(zh, "/s/e2", "", 0, OPEN, ZOO_EPHEMERAL, NULL, 0), ZOK);
    /* A handle with the id of another takes its session over. */
    id = *zoo_client_id(zh);
    zhandle_t *second = open_session(hosts, &id, again);
    wait_told("the same id again", again, "connected; ");
    check("it is the session", zoo_client_id(second)->client_id == id.client_id, 1);
    order("cut");
    struct Stat stat;
    int rc = zoo_exists(second, "/s/e2", 0, &stat);
    while (rc == ZCONNECTIONLOSS || rc == ZINVALIDSTATE)
        rc = zoo_exists(second, "/s/e2", 0, &stat);
    check_code("its ephemeral is there", rc, ZOK);
    check("and its own", stat.ephemeralOwner == id.client_id, 1);
    check_code("close", zookeeper_close(second), ZOK);
    check_code("it took its ephemeral along", zoo_exists(other, "/s/e2", 0, &stat), ZNONODE);
    order("heal");
    struct told *wrong = new_told();
    id.passwd[0] ^= 1;
    zhandle_t *third = open_session(hosts, &id, wrong);
    wait_told("a session that is closed", wrong, "expired; ");
    check("is unrecoverable", is_unrecoverable(third), ZINVALIDSTATE);
    zookeeper_close(third);
    zookeeper_close(zh);
    zookeeper_close(other);
}

static void restarts(const char *wire) {
    struct told *states = new_told();
    zhandle_t *zh = connected(wire, states);
    int64_t id = zoo_client_id(zh)->client_id;
    char path[64];
    struct Stat stat;
    check_code("create", zoo_create(zh, "/k", "", 0, OPEN, 0, NULL, 0), ZOK);
    for (int round = 0; round < 2; round++) {
        struct told *watch = new_told();
        check_code("ephemeral", zoo_create(zh, "/k/e-", "", 0, OPEN, ZOO_EPHEMERAL_SEQUENTIAL, path, sizeof path), ZOK);
        check_code("wexists", zoo_wexists(zh, path, watcher, watch, &stat), ZOK);
        order(round == 0 ? "stop" : "kill");
        wait_told("the connection breaks", states, "connecting; ");
        order("start");
        wait_told("and comes back", states, "connected; ");
        check("the same session", zoo_client_id(zh)->client_id == id, 1);
        check_code("the ephemeral is there", zoo_exists(zh, path, 0, &stat), ZOK);
        check("and its owner's", stat.ephemeralOwner == id, 1);
        check_code("delete", zoo_delete(zh, path, -1), ZOK);
        char expected[128];
        snprintf(expected, sizeof expected, "deleted %s; ", path);
        wait_told("its watch fires", watch, expected);
    }
    zookeeper_close(zh);
}

int main(void) {
    const char *hosts = getenv("HOSTS"), *wire = getenv("WIRE");
    char chroot[128];
    zoo_set_debug_level(0);
    zhandle_t *zh = connected(hosts, new_told()), *other = connected(hosts, new_told());
    creating(zh);
    reading_and_writing(zh);
    transactions(zh);
    watching(zh, other);
    rights(zh, other, hosts);
    pipelining(zh);
    snprintf(chroot, sizeof chroot, "%s/r", hosts);
    zhandle_t *inner = connected(chroot, new_told());
    check_code("in a chroot", zoo_create(inner, "/inner", "", 0, OPEN, 0, chroot, sizeof chroot), ZOK);
    check_text("its path", chroot, "/inner");
    check_code("outside", zoo_exists(zh, "/r/inner", 0, &(struct Stat){0}), ZOK);
    zookeeper_close(inner);
    sessions(hosts, wire);
    restarts(wire);
    check_code("close", zookeeper_close(zh), ZOK);
    check_code("close", zookeeper_close(other), ZOK);
    return 0;
}
