/* A completions server with an exact token schedule and the truth about it. One thread, epoll, absolute times.
 *
 *   server PORT ITL_MS TTFT_MS PATTERN LOCKSTEP
 *
 * PATTERN is "1", "4" or a cycle like "1,4,2": tokens in each chunk. Token i of a request is due at
 * t0 + TTFT + i * ITL on CLOCK_MONOTONIC (t0: the request was read to its end), whatever was late before; a chunk
 * leaves when its last token is due. With LOCKSTEP 1 due times of all streams lie on one grid of ITL, as in a batched
 * engine. GET /truth gives, as JSON, what was sent since the last time: for each request when it was read and, for
 * each chunk, the time just before its write and its tokens. Port 0: the kernel chooses; it is printed first.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 4096
#define MAX_PATTERN 16
#define EVENTS 512

struct buffer { char *data; size_t used, room; };

struct conn {
    int open, streaming, chat, keep, usage, continuous, number, tokens, given, chunk;
    double t0, first;              /* seconds: request read, first token due */
    double *at;                    /* truth: time of each write */
    int *count;                    /* truth: tokens in each */
    struct buffer in, out;
};

static struct conn conns[MAX_FD];
static int poller, listener, timer, requests, highest;
static double itl, ttft;
static int pattern[MAX_PATTERN], patterns, lockstep;
static struct buffer truth;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void need(struct buffer *b, size_t more) {
    if (b->used + more <= b->room) return;
    b->room = (b->used + more) * 2;
    b->data = realloc(b->data, b->room);
    if (!b->data) exit(2);
}

static void put(struct buffer *b, const char *data, size_t size) {
    need(b, size);
    memcpy(b->data + b->used, data, size);
    b->used += size;
}

__attribute__((format(printf, 2, 3))) static void print(struct buffer *b, const char *format, ...) {
    va_list args;
    char text[2048];
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put(b, text, size < (int)sizeof text ? (size_t)size : sizeof text - 1);
}

static void drop(int fd) {
    struct conn *c = &conns[fd];
    epoll_ctl(poller, EPOLL_CTL_DEL, fd, NULL);
    close(fd);
    free(c->at), free(c->count), free(c->in.data), free(c->out.data);
    memset(c, 0, sizeof *c);
}

static void flush(int fd) {
    struct conn *c = &conns[fd];
    while (c->out.used) {
        ssize_t n = write(fd, c->out.data, c->out.used);
        if (n < 0) {
            if (errno != EAGAIN && errno != EINTR) drop(fd);
            return;
        }
        memmove(c->out.data, c->out.data + n, c->out.used - n);
        c->out.used -= n;
    }
    if (!c->streaming && !c->keep && c->number) drop(fd);
}

static void frame(struct buffer *out, const struct buffer *body) {
    print(out, "%zx\r\n", body->used);
    put(out, body->data, body->used);
    put(out, "\r\n", 2);
}

static void reply(int fd, const char *type, const struct buffer *body) {
    struct conn *c = &conns[fd];
    print(&c->out, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n%s\r\n", type, body->used,
          c->keep ? "" : "connection: close\r\n");
    put(&c->out, body->data, body->used);
    c->number = -1;
    flush(fd);
}

static double due(const struct conn *c) {
    int last = c->given + pattern[c->chunk % patterns];
    if (last > c->tokens) last = c->tokens;
    return c->first + (last - 1) * itl;
}

static void usage(struct buffer *body, int tokens) {
    print(body, "{\"prompt_tokens\":16,\"completion_tokens\":%d,\"total_tokens\":%d}", tokens, tokens + 16);
}

static void finish(int fd) {
    struct conn *c = &conns[fd];
    struct buffer body = {0};
    if (c->usage) {
        print(&body, "data: {\"id\":\"cmpl-%d\",\"object\":\"%s\",\"created\":1,\"model\":\"truth\",\"choices\":[],\"usage\":",
              c->number, c->chat ? "chat.completion.chunk" : "text_completion");
        usage(&body, c->tokens);
        put(&body, "}\n\n", 3);
    }
    print(&body, "data: [DONE]\n\n");
    frame(&c->out, &body);
    put(&c->out, "0\r\n\r\n", 5);
    free(body.data);
    print(&truth, "%s{\"n\":%d,\"t0\":%.9f,\"at\":[", truth.used ? "," : "", c->number, c->t0);
    for (int i = 0; i < c->chunk; i++) print(&truth, "%s%.9f", i ? "," : "", c->at[i]);
    print(&truth, "],\"tokens\":[");
    for (int i = 0; i < c->chunk; i++) print(&truth, "%s%d", i ? "," : "", c->count[i]);
    print(&truth, "]}");
    c->streaming = 0;
    flush(fd);
}

static void send_chunk(int fd) {
    struct conn *c = &conns[fd];
    struct buffer body = {0};
    int n = pattern[c->chunk % patterns];
    if (n > c->tokens - c->given) n = c->tokens - c->given;
    int last = c->given + n == c->tokens;
    print(&body, "data: {\"id\":\"cmpl-%d\",\"object\":\"%s\",\"created\":1,\"model\":\"truth\",\"choices\":[{\"index\":0,%s",
          c->number, c->chat ? "chat.completion.chunk" : "text_completion",
          c->chat ? "\"delta\":{\"content\":\"" : "\"text\":\"");
    for (int i = 0; i < n; i++) put(&body, " tok", 4);
    print(&body, "\"%s,\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null}],\"usage\":",
          c->chat ? "}" : "", last ? "\"length\"" : "null");
    if (c->continuous) usage(&body, c->given + n);
    else put(&body, "null", 4);
    put(&body, "}\n\n", 3);
    frame(&c->out, &body);
    free(body.data);
    c->at[c->chunk] = now();
    c->count[c->chunk++] = n;
    c->given += n;
    flush(fd);
    if (c->open && last) finish(fd);
}

static long field(const char *body, const char *name, long otherwise) {
    const char *at = strstr(body, name);
    if (!at || !(at = strchr(at + strlen(name), ':'))) return otherwise;
    return strtol(at + 1, NULL, 10);
}

static void generate(int fd, const char *path, const char *body) {
    struct conn *c = &conns[fd];
    c->t0 = now();
    c->chat = strstr(path, "/chat/") != NULL;
    c->tokens = field(body, "\"max_tokens\"", field(body, "\"max_completion_tokens\"", 16));
    if (c->tokens < 1) c->tokens = 1;
    c->usage = strstr(body, "\"include_usage\"") != NULL;
    c->continuous = strstr(body, "\"continuous_usage_stats\"") != NULL;
    c->number = ++requests;
    c->given = c->chunk = 0;
    c->at = realloc(c->at, c->tokens * sizeof *c->at);
    c->count = realloc(c->count, c->tokens * sizeof *c->count);
    c->first = c->t0 + ttft;
    if (lockstep) c->first = ((long)(c->first / itl) + 1) * itl;
    c->streaming = 1;
    print(&c->out, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n%s\r\n",
          c->keep ? "" : "connection: close\r\n");
    flush(fd);
}

static void serve(int fd) {
    struct conn *c = &conns[fd];
    need(&c->in, 1);
    c->in.data[c->in.used] = 0;
    char *end = strstr(c->in.data, "\r\n\r\n");
    if (!end || c->streaming) return;
    char *length = strcasestr(c->in.data, "content-length:");
    size_t size = length && length < end ? strtoul(length + 15, NULL, 10) : 0;
    char *body = end + 4;
    if (c->in.used < (size_t)(body - c->in.data) + size) return;
    *end = 0;
    c->keep = strcasestr(c->in.data, "connection: close") == NULL;
    c->in.used = 0; /* no pipelining */
    if (!strncmp(c->in.data, "GET /truth", 10)) {
        struct buffer all = {0};
        put(&all, "[", 1);
        put(&all, truth.data ? truth.data : "", truth.used);
        put(&all, "]", 1);
        truth.used = 0;
        reply(fd, "application/json", &all);
        free(all.data);
    } else if (!strncmp(c->in.data, "GET ", 4)) {
        struct buffer list = {0};
        print(&list, "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\",\"max_model_len\":131072}]}");
        reply(fd, "application/json", &list);
        free(list.data);
    } else {
        generate(fd, c->in.data, body);
    }
}

static void take(int fd) {
    struct conn *c = &conns[fd];
    need(&c->in, 65536);
    ssize_t n = read(fd, c->in.data + c->in.used, 65535);
    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) drop(fd);
        return;
    }
    c->in.used += n;
    serve(fd);
}

static void welcome(void) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    if (fd >= MAX_FD) { close(fd); return; }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    conns[fd].open = 1;
    if (fd > highest) highest = fd;
}

static void run_due(void) {
    double next = 0, at = now();
    for (int fd = 0; fd <= highest; fd++) {
        struct conn *c = &conns[fd];
        if (c->open && c->out.used) flush(fd);
        while (c->open && c->streaming && due(c) <= at) send_chunk(fd);
        if (c->open && c->streaming && (!next || due(c) < next)) next = due(c);
    }
    struct itimerspec t = {0};
    t.it_value.tv_sec = (time_t)next;
    t.it_value.tv_nsec = (long)((next - (double)(time_t)next) * 1e9);
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &t, NULL);
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "usage: server PORT ITL_MS TTFT_MS PATTERN LOCKSTEP\n"), 2;
    itl = atof(argv[2]) / 1e3, ttft = atof(argv[3]) / 1e3, lockstep = atoi(argv[5]);
    for (char *p = strtok(argv[4], ","); p && patterns < MAX_PATTERN; p = strtok(NULL, ",")) pattern[patterns++] = atoi(p);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int one = 1;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 1024)) return perror("listen"), 1;
    getsockname(listener, (struct sockaddr *)&a, &size);
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    poller = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, ready[EVENTS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    e.data.fd = timer;
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &e);
    for (;;) {
        int n = epoll_wait(poller, ready, EVENTS, 1000);
        for (int i = 0; i < n; i++) {
            unsigned long ticks;
            int fd = ready[i].data.fd;
            if (fd == listener) welcome();
            else if (fd == timer) { if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) return 1; }
            else if (conns[fd].open) take(fd);
        }
        run_due();
    }
}
