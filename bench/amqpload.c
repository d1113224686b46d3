/* amqpload - a small, dependency-free AMQP 1.0 load generator.
 *
 * One thread, epoll, one TCP connection + session per sender/receiver, with one link or many.
 * It speaks just enough AMQP 1.0 to drive a broker hard while costing about
 * one microsecond of its own CPU per message, so that on a small machine the
 * broker, not the client, is what is being measured.
 *
 * Prints one JSON object on stdout.  See README.md.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------ options */
static const char *o_host = "127.0.0.1", *o_port = "5672", *o_user = NULL, *o_pass = "";
static const char *o_address = "bench", *o_send_address = NULL, *o_vhost = NULL, *o_label = "";
static long o_copies = 1, o_numbers = 0;
static int o_senders = 1, o_receivers = 1, o_queues = 1, o_size = 1024, o_window = 1000;
static int o_credit = 1000, o_durable = 1, o_second = 0, o_presettled = 0, o_sasl = 1, o_verbose = 0;
static long o_count = 100000, o_warmup = 0;
static double o_duration = 0, o_rate = 0, o_idle = 10.0, o_think_ms = 0;
static int o_groups = 0, o_terminus = 0, o_max_frame = 65536, o_defer = 0;
static double o_schedule_s = 0;
static int o_links = 1, o_bystanders = 0;
static long o_first_id = 1;
static int o_pids[64], o_npids = 0;

/* ------------------------------------------------------------------- helpers */
static uint64_t now_ns(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void die(const char *f, ...) {
    va_list a; va_start(a, f); fprintf(stderr, "amqpload: "); vfprintf(stderr, f, a);
    fputc('\n', stderr); va_end(a); exit(1);
}
/* utime+stime of a process (all its threads), in microseconds */
static double pid_cpu_us(int pid) {
    char p[64], b[1024]; snprintf(p, sizeof p, "/proc/%d/stat", pid);
    int fd = open(p, O_RDONLY); if (fd < 0) return 0;
    ssize_t n = read(fd, b, sizeof b - 1); close(fd); if (n <= 0) return 0; b[n] = 0;
    char *s = strrchr(b, ')'); if (!s) return 0;
    unsigned long ut = 0, st = 0;
    if (sscanf(s + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &ut, &st) != 2) return 0;
    return (double)(ut + st) * 1e6 / sysconf(_SC_CLK_TCK);
}
static double pids_cpu_us(void) { double s = 0; for (int i = 0; i < o_npids; i++) s += pid_cpu_us(o_pids[i]); return s; }
static double self_cpu_us(void) {
    struct rusage r; getrusage(RUSAGE_SELF, &r);
    return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 + r.ru_utime.tv_usec + r.ru_stime.tv_usec;
}

/* log-linear histogram of nanoseconds: 64 sub-buckets per power of two */
typedef struct { uint64_t n[64 * 64]; uint64_t count, max; double sum; } Hist;
static int hidx(uint64_t v) {
    if (v < 64) return (int)v;
    int e = 63 - __builtin_clzll(v);
    return (e - 5) * 64 + (int)((v >> (e - 6)) & 63);
}
static uint64_t hval(int i) {
    if (i < 64) return i;
    int e = i / 64 + 5; return (64ull + (i & 63)) << (e - 6);
}
static void hadd(Hist *h, uint64_t v) { h->n[hidx(v)]++; h->count++; h->sum += v; if (v > h->max) h->max = v; }
static double hq(Hist *h, double q) {
    if (!h->count) return 0;
    uint64_t want = (uint64_t)(q * (h->count - 1)) + 1, acc = 0;
    for (int i = 0; i < 64 * 64; i++) { acc += h->n[i]; if (acc >= want) return hval(i) / 1e3; }
    return h->max / 1e3;
}
static void hprint(const char *name, Hist *h) {
    printf("\"%s\":{\"count\":%lu,\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}",
           name, (unsigned long)h->count, h->count ? h->sum / h->count / 1e3 : 0, hq(h, .5), hq(h, .9), hq(h, .99),
           hq(h, .999), h->max / 1e3);
}

/* ------------------------------------------------------- AMQP encode / decode */
typedef struct { uint8_t *p; size_t len, cap; } Buf;
static void bneed(Buf *b, size_t n) {
    if (b->len + n > b->cap) { while (b->len + n > b->cap) b->cap = b->cap ? b->cap * 2 : 65536; b->p = realloc(b->p, b->cap); }
}
static void b1(Buf *b, int v) { bneed(b, 1); b->p[b->len++] = (uint8_t)v; }
static void b4(Buf *b, uint32_t v) { bneed(b, 4); uint32_t x = htonl(v); memcpy(b->p + b->len, &x, 4); b->len += 4; }
static void bn(Buf *b, const void *d, size_t n) { bneed(b, n); memcpy(b->p + b->len, d, n); b->len += n; }
static void p4(uint8_t *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static uint32_t g4(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static void e_uint(Buf *b, uint32_t v) { b1(b, 0x70); b4(b, v); }
static void e_str(Buf *b, const char *s) { size_t n = strlen(s); if (n > 255) die("string too long"); b1(b, 0xa1); b1(b, n); bn(b, s, n); }
static void e_sym(Buf *b, const char *s) { size_t n = strlen(s); b1(b, 0xa3); b1(b, n); bn(b, s, n); }
static void e_null(Buf *b) { b1(b, 0x40); }
static void e_bool(Buf *b, int v) { b1(b, v ? 0x41 : 0x42); }
/* described list32 with patched size/count */
static size_t list_begin(Buf *b, int code) { b1(b, 0); b1(b, 0x53); b1(b, code); b1(b, 0xd0); b4(b, 0); b4(b, 0); return b->len; }
static void list_end(Buf *b, size_t at, int count) { p4(b->p + at - 8, (uint32_t)(b->len - at + 4)); p4(b->p + at - 4, count); }
static size_t frame_begin(Buf *b, int type) { size_t at = b->len; b4(b, 0); b1(b, 2); b1(b, type); b1(b, 0); b1(b, 0); return at; }
static void frame_end(Buf *b, size_t at) { p4(b->p + at, (uint32_t)(b->len - at)); }

/* size of one encoded value at p (end e), 0 on error */
static size_t vsize(const uint8_t *p, const uint8_t *e) {
    if (p >= e) return 0;
    int c = p[0];
    if (c == 0) { size_t a = vsize(p + 1, e); if (!a) return 0; size_t d = vsize(p + 1 + a, e); return d ? 1 + a + d : 0; }
    switch (c >> 4) {
        case 4: return 1; case 5: return 2; case 6: return 3; case 7: return 5; case 8: return 9; case 9: return 17;
        case 0xa: case 0xc: case 0xe: return p + 1 < e ? 2 + (size_t)p[1] : 0;
        case 0xb: case 0xd: case 0xf: return p + 4 < e ? 5 + (size_t)g4(p + 1) : 0;
    }
    return 0;
}
typedef struct { const uint8_t *p, *e; uint32_t left; } List;
static int list_open(List *l, const uint8_t *p, const uint8_t *e) {
    if (p >= e) return 0;
    if (*p == 0x45) { l->p = l->e = p + 1; l->left = 0; return 1; }
    if (*p == 0xc0) { l->left = p[2]; l->p = p + 3; l->e = p + 2 + p[1]; return 1; }
    if (*p == 0xd0) { l->left = g4(p + 5); l->p = p + 9; l->e = p + 5 + g4(p + 1); return 1; }
    return 0;
}
static const uint8_t *list_next(List *l) { /* NULL if absent */
    if (!l->left) return NULL;
    const uint8_t *r = l->p; size_t n = vsize(r, l->e); if (!n) { l->left = 0; return NULL; }
    l->p += n; l->left--; return r;
}
static int is_null(const uint8_t *p) { return !p || *p == 0x40; }
static uint32_t as_uint(const uint8_t *p, uint32_t dflt) {
    if (is_null(p)) return dflt;
    switch (*p) { case 0x43: case 0x44: return 0; case 0x52: case 0x53: case 0x50: return p[1];
        case 0x60: return p[1] << 8 | p[2]; case 0x70: return g4(p + 1); case 0x80: return g4(p + 5); }
    return dflt;
}
static int as_bool(const uint8_t *p, int dflt) { if (is_null(p)) return dflt; if (*p == 0x41) return 1; if (*p == 0x42) return 0; if (*p == 0x56) return p[1]; return dflt; }
/* descriptor code of a described value; *body = the value that follows */
static int described(const uint8_t *p, const uint8_t *e, const uint8_t **body) {
    if (!p || p >= e || *p != 0) return -1;
    size_t n = vsize(p + 1, e); if (!n) return -1;
    if (body) *body = p + 1 + n;
    return (int)as_uint(p + 1, 0xffff);
}

/* --------------------------------------------------------------- connections */
enum { ST_SASL_HDR, ST_SASL, ST_AMQP_HDR, ST_OPEN, ST_BEGIN, ST_ATTACH, ST_RUN, ST_CLOSING, ST_DEAD };
#define RING_MAX 65536
#define AT_ONCE 64 /* connections that are being set up at a time: a broker need not take thousands of strangers */
static uint32_t ring = RING_MAX; /* deliveries of a connection whose times are kept: fewer where there are many */
typedef struct {
    uint32_t link_credit, delivery_count;              /* sender */
    uint32_t credit_left, rx_count, cur_id; int in_delivery; /* receiver */
} Link;
typedef struct {
    int fd, idx, sender, state, want_out, attached;
    Buf in, out; size_t out_pos;
    uint32_t remote_max_frame;
    Link *links; int next_link; uint32_t *by_handle, handles; /* which of ours the broker means by its handle */
    /* sender */
    uint32_t next_id, next_transfer, sess_window; int inflight; long quota; uint64_t *ts;
    uint64_t next_due;
    /* receiver */
    uint32_t next_incoming, ack_first, ack_last; int ack_pending; uint64_t *settle_ts;
} Conn;
static Conn *conns; static int nconns, ep;
static int g_ready; static long g_outstanding; /* connections that run; completions whose answer is waited for */
static long g_sent, g_acked, g_rejected, g_recv, g_settled, g_conn_err;
static long g_total;              /* messages to send in all (or -1 while timed) */
static int g_sending_over, g_warm; static uint64_t t_start, t_warm, t_last_ack, t_last_rx, t_progress;
static int g_warm_s, g_warm_r; static uint64_t t_warm_s, t_warm_r; static long ws_acked, wr_recv;
static long w_acked, w_recv; static double cpu_b0, cpu_s0; static Hist h_send, h_e2e, h_settle; static char g_err[512];
static uint8_t *msg; static size_t msg_len, msg_ts_off, msg_id_off, msg_group_off, msg_n_off, msg_g_off;
static const char MAGIC[8] = {'A','M','Q','P','L','O','A','D'};

static void build_message(void) {
    Buf b = {0}; size_t at;
    at = list_begin(&b, 0x70); e_bool(&b, o_durable); list_end(&b, at, 1);
    if (o_schedule_s > 0) { /* message-annotations: x-opt-scheduled-enqueue-time, the Service Bus way to send for later */
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
        uint64_t due_ms = (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 + (uint64_t)(o_schedule_s * 1000);
        static const char key[] = "x-opt-scheduled-enqueue-time"; size_t n = sizeof key - 1;
        b1(&b, 0); b1(&b, 0x53); b1(&b, 0x72); b1(&b, 0xc1); b1(&b, (int)(1 + 2 + n + 9)); b1(&b, 2);
        b1(&b, 0xa3); b1(&b, (int)n); bn(&b, key, n); b1(&b, 0x83); b4(&b, (uint32_t)(due_ms >> 32)); b4(&b, (uint32_t)due_ms);
    }
    at = list_begin(&b, 0x73);
    b1(&b, 0xa1); b1(&b, 16); msg_id_off = b.len; bn(&b, "0000000000000000", 16);              /* message-id */
    if (o_groups > 0) {
        for (int i = 0; i < 9; i++) e_null(&b);
        b1(&b, 0xa1); b1(&b, 8); msg_group_off = b.len; bn(&b, "g0000000", 8); list_end(&b, at, 11);
    } else { for (int i = 0; i < 5; i++) e_null(&b); e_sym(&b, "application/octet-stream"); list_end(&b, at, 7); }
    if (o_numbers > 0) { /* application-properties: n, an int, and g, a string, for rules to look at */
        b1(&b, 0); b1(&b, 0x53); b1(&b, 0x74); b1(&b, 0xc1); b1(&b, 1 + 3 + 5 + 3 + 4); b1(&b, 4);
        b1(&b, 0xa1); b1(&b, 1); b1(&b, 'n'); b1(&b, 0x71); msg_n_off = b.len; b4(&b, 0);
        b1(&b, 0xa1); b1(&b, 1); b1(&b, 'g'); b1(&b, 0xa1); b1(&b, 2); b1(&b, 'g'); msg_g_off = b.len; b1(&b, '0');
    }
    if (o_size < 16) o_size = 16;
    b1(&b, 0); b1(&b, 0x53); b1(&b, 0x75); b1(&b, 0xb0); b4(&b, o_size);
    bn(&b, MAGIC, 8); msg_ts_off = b.len;
    for (int i = 8; i < o_size; i++) b1(&b, 'a' + i % 26);
    msg = b.p; msg_len = b.len;
}

static void arm(Conn *c, int out) {
    if (c->want_out == out) return;
    c->want_out = out;
    struct epoll_event ev = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &ev);
}
static void conn_dead(Conn *c, const char *why) {
    if (c->state == ST_DEAD) return;
    if (c->state != ST_CLOSING) { g_conn_err++; if (!g_err[0]) snprintf(g_err, sizeof g_err, "conn %d: %s", c->idx, why); }
    c->state = ST_DEAD; epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, NULL); close(c->fd);
}
static int flush_out(Conn *c) { /* 1 when all is written */
    while (c->out_pos < c->out.len) {
        ssize_t n = write(c->fd, c->out.p + c->out_pos, c->out.len - c->out_pos);
        if (n < 0) { if (errno == EAGAIN) { arm(c, 1); return 0; } if (errno == EINTR) continue; conn_dead(c, strerror(errno)); return 0; }
        c->out_pos += n;
    }
    c->out.len = c->out_pos = 0; arm(c, 0); return 1;
}
static void send_flow(Conn *c, int j) {
    Link *k = &c->links[j]; size_t f = frame_begin(&c->out, 0), l = list_begin(&c->out, 0x13);
    e_uint(&c->out, c->next_incoming); e_uint(&c->out, 0x7fffffff);
    e_uint(&c->out, c->next_transfer); e_uint(&c->out, 0x7fffffff);
    e_uint(&c->out, (uint32_t)j); e_uint(&c->out, k->rx_count); e_uint(&c->out, o_credit);
    list_end(&c->out, l, 7); frame_end(&c->out, f); k->credit_left = o_credit;
}
static void send_disposition(Conn *c) {
    if (!c->ack_pending) return;
    size_t f = frame_begin(&c->out, 0), l = list_begin(&c->out, 0x15);
    e_bool(&c->out, 1); e_uint(&c->out, c->ack_first); e_uint(&c->out, c->ack_last); e_bool(&c->out, !o_second);
    if (o_defer) { /* modified(delivery-failed null, undeliverable-here true) is how Service Bus clients defer */
        size_t m = list_begin(&c->out, 0x27); e_null(&c->out); e_bool(&c->out, 1); list_end(&c->out, m, 2);
    } else { b1(&c->out, 0); b1(&c->out, 0x53); b1(&c->out, 0x24); b1(&c->out, 0x45); }
    list_end(&c->out, l, 5); frame_end(&c->out, f);
    if (o_second) { uint64_t t = now_ns(); for (uint32_t i = c->ack_first;; i++) { c->settle_ts[i % ring] = t; if (i == c->ack_last) break; } }
    c->ack_pending = 0;
}
static void put_transfer(Conn *c, int j, uint64_t t) {
    uint32_t id = c->next_id; size_t off = 0;
    memcpy(msg + msg_ts_off, &t, 8);
    static const char hx[] = "0123456789abcdef"; uint64_t k = ((uint64_t)c->idx << 48) | (uint64_t)(g_sent + o_first_id);
    for (int i = 15; i >= 0; i--) { msg[msg_id_off + i] = hx[k & 15]; k >>= 4; }
    if (o_groups > 0) { char g[9]; snprintf(g, sizeof g, "g%07u", (unsigned)(g_sent % o_groups) % 10000000u); memcpy(msg + msg_group_off, g, 8); }
    if (o_numbers > 0) { p4(msg + msg_n_off, (uint32_t)(g_sent % o_numbers)); msg[msg_g_off] = '0' + g_sent % o_numbers % 5; }
    size_t room = (c->remote_max_frame ? c->remote_max_frame : 0xffffffffu) - 64;
    do {
        size_t n = msg_len - off; int more = 0; if (n > room) { n = room; more = 1; }
        Buf *b = &c->out; bneed(b, n + 64); uint8_t *s = b->p + b->len, *q = s + 8;
        s[4] = 2; s[5] = 0; s[6] = 0; s[7] = 0;
        *q++ = 0; *q++ = 0x53; *q++ = 0x14; *q++ = 0xc0; uint8_t *ls = q++; *q++ = 6;
        if (j == 0) *q++ = 0x43; else { *q++ = 0x70; p4(q, (uint32_t)j); q += 4; }
        *q++ = 0x70; p4(q, id); q += 4; *q++ = 0xa0; *q++ = 4; p4(q, id); q += 4; *q++ = 0x43;
        *q++ = o_presettled ? 0x41 : 0x42; *q++ = more ? 0x41 : 0x42;
        *ls = (uint8_t)(q - ls - 1); memcpy(q, msg + off, n); q += n; p4(s, (uint32_t)(q - s)); b->len += q - s; off += n;
        c->next_transfer++;
        if (c->sess_window) c->sess_window--;
    } while (off < msg_len);
    c->ts[id % ring] = t; c->next_id++; c->links[j].delivery_count++; c->links[j].link_credit--; g_sent++;
    if (o_presettled) { g_acked++; t_last_ack = t; } else c->inflight++;
    if (c->quota > 0) c->quota--;
}
/* Senders and receivers leave their warm-up separately: with a broker whose receivers lag, a common
 * point would leave only the tail of the sends in the window.  CPU runs from the first of the two. */
static void check_warm(void) {
    if ((g_warm_s || !o_senders) && (g_warm_r || !o_receivers)) return;
    int s = o_senders && !g_warm_s && g_acked >= o_warmup, r = o_receivers && !g_warm_r && g_recv >= o_warmup;
    if (!s && !r) return;
    uint64_t t = now_ns();
    if (!g_warm) { g_warm = 1; t_warm = t; w_acked = g_acked; w_recv = g_recv; cpu_b0 = pids_cpu_us(); cpu_s0 = self_cpu_us(); }
    if (s) { g_warm_s = 1; t_warm_s = t; ws_acked = g_acked; memset(&h_send, 0, sizeof h_send); }
    if (r) { g_warm_r = 1; t_warm_r = t; wr_recv = g_recv; memset(&h_e2e, 0, sizeof h_e2e); memset(&h_settle, 0, sizeof h_settle); }
}
static int can_send(Conn *c) {
    return c->sender && c->state == ST_RUN && !g_sending_over && c->sess_window && c->inflight < o_window && c->quota != 0;
}
static int link_with_credit(Conn *c) { /* -1 if none; in turn, so that every link has its share */
    for (int n = 0; n < o_links; n++) { int j = c->next_link; c->next_link = j + 1 < o_links ? j + 1 : 0; if (c->links[j].link_credit) return j; }
    return -1;
}
static void pump(Conn *c) {
    while (can_send(c)) {
        if (c->out.len - c->out_pos > 131072) { if (!flush_out(c)) return; }
        uint64_t t = now_ns();
        if (o_rate > 0) { if (c->next_due > t) break; c->next_due += (uint64_t)(1e9 * o_senders / o_rate); if (c->next_due + 1000000000ull < t) c->next_due = t; }
        int j = link_with_credit(c); if (j < 0) break;
        put_transfer(c, j, t);
    }
    if (c->out.len > c->out_pos) flush_out(c);
}
static void on_settled(Conn *c, uint32_t first, uint32_t last, const uint8_t *state, const uint8_t *e) {
    int code = described(state, e, NULL); uint64_t t = now_ns();
    for (uint32_t i = first;; i++) {
        uint64_t *s = &c->ts[i % ring];
        if (*s) {
            hadd(&h_send, t - *s); *s = 0; c->inflight--;
            if (code == 0x24 || code == -1) g_acked++; else { g_rejected++; if (!g_err[0]) snprintf(g_err, sizeof g_err, "delivery outcome 0x%x", code); }
        }
        if (i == last) break;
    }
    t_last_ack = t_progress = t; check_warm();
}
static void err_text(const uint8_t *v, const uint8_t *e, const char *what) {
    const uint8_t *body; List l; if (g_err[0]) return;
    if (described(v, e, &body) != 0x1d || !list_open(&l, body, e)) { snprintf(g_err, sizeof g_err, "%s by peer", what); return; }
    const uint8_t *cnd = list_next(&l), *d = list_next(&l); char a[100] = "", t[300] = "";
    if (!is_null(cnd) && *cnd == 0xa3) snprintf(a, sizeof a, "%.*s", cnd[1], cnd + 2);
    if (!is_null(d) && *d == 0xa1) snprintf(t, sizeof t, "%.*s", d[1], d + 2);
    else if (!is_null(d) && *d == 0xb1) snprintf(t, sizeof t, "%.*s", (int)(g4(d + 1) > 250 ? 250 : g4(d + 1)), d + 5);
    for (char *q = t; *q; q++) if (*q == '"' || *q == '\\' || (unsigned char)*q < 32) *q = ' ';
    snprintf(g_err, sizeof g_err, "%s: %s: %s", what, a, t);
}
static void start_running(Conn *c) {
    c->state = ST_RUN; t_progress = now_ns(); g_ready++;
    if (!c->sender) for (int j = 0; j < o_links; j++) send_flow(c, j);
}
static void link_address(Conn *c, int j, char *to, size_t size) {
    const char *a = c->sender && o_send_address ? o_send_address : o_address, *pct = strstr(a, "%d");
    int number = ((c->sender ? c->idx - o_receivers : c->idx) * o_links + j) % o_queues;
    if (pct) snprintf(to, size, "%.*s%d%s", (int)(pct - a), a, number, pct + 2); else snprintf(to, size, "%s", a);
}
static void send_open(Conn *c) {
    char cid[64]; snprintf(cid, sizeof cid, "amqpload-%d-%d", (int)getpid(), c->idx);
    bn(&c->out, "AMQP\0\1\0\0", 8);
    size_t f = frame_begin(&c->out, 0), l = list_begin(&c->out, 0x10);
    e_str(&c->out, cid); e_str(&c->out, o_vhost ? o_vhost : o_host); e_uint(&c->out, o_max_frame); b1(&c->out, 0x60); b1(&c->out, 0); b1(&c->out, 255); e_uint(&c->out, 120000);
    list_end(&c->out, l, 5); frame_end(&c->out, f); c->state = ST_AMQP_HDR;
}
static void send_begin(Conn *c) {
    size_t f = frame_begin(&c->out, 0), l = list_begin(&c->out, 0x11);
    e_null(&c->out); e_uint(&c->out, 0); e_uint(&c->out, 0x7fffffff); e_uint(&c->out, 0x7fffffff); e_uint(&c->out, 10);
    list_end(&c->out, l, 5); frame_end(&c->out, f); c->state = ST_BEGIN;
}
static void send_attach(Conn *c, int j) {
    char name[96], address[256]; snprintf(name, sizeof name, "amqpload-%s-%d-%d-%d", c->sender ? "s" : "r", (int)getpid(), c->idx, j);
    link_address(c, j, address, sizeof address);
    Buf *b = &c->out; size_t f = frame_begin(b, 0), l = list_begin(b, 0x14 - 2), k;
    e_str(b, name); e_uint(b, (uint32_t)j); e_bool(b, !c->sender);
    b1(b, 0x50); b1(b, c->sender ? (o_presettled ? 1 : 0) : 0); b1(b, 0x50); b1(b, (!c->sender && o_second) ? 1 : 0);
    k = list_begin(b, 0x28); /* source */
    if (c->sender) { list_end(b, k, 0); } else { e_str(b, address); b1(b, 0x52); b1(b, o_terminus); e_sym(b, "session-end"); list_end(b, k, 3); }
    k = list_begin(b, 0x29); /* target */
    if (c->sender) { e_str(b, address); b1(b, 0x52); b1(b, o_terminus); e_sym(b, "session-end"); list_end(b, k, 3); } else { list_end(b, k, 0); }
    int n = 7; if (c->sender) { e_null(b); e_null(b); e_uint(b, 0); n = 10; }
    list_end(b, l, n); frame_end(b, f);
}
static int our_link(Conn *c, const uint8_t *handle) { /* of what the broker calls it */
    uint32_t h = as_uint(handle, 0); return h < c->handles ? (int)c->by_handle[h] : 0;
}
static void on_attach(Conn *c, const uint8_t *name, const uint8_t *handle) {
    if (o_links > 1) {
        char text[256] = ""; if (!is_null(name) && *name == 0xa1) snprintf(text, sizeof text, "%.*s", name[1], name + 2);
        char *dash = strrchr(text, '-'); int j = dash ? atoi(dash + 1) : -1; uint32_t h = as_uint(handle, 0);
        if (j < 0 || j >= o_links || h > 65535) { conn_dead(c, "an attach that nobody asked for"); return; }
        if (h >= c->handles) { c->by_handle = realloc(c->by_handle, (h + 1) * sizeof *c->by_handle); while (c->handles <= h) c->by_handle[c->handles++] = 0; }
        c->by_handle[h] = (uint32_t)j;
    }
    if (++c->attached == o_links) start_running(c);
}
static void on_transfer(Conn *c, List *l, const uint8_t *pay, const uint8_t *e) {
    Link *k = &c->links[our_link(c, list_next(l))]; const uint8_t *id = list_next(l); list_next(l); list_next(l);
    const uint8_t *st = list_next(l); int more = as_bool(list_next(l), 0), settled = as_bool(st, 0);
    c->next_incoming++;
    if (!k->in_delivery) {
        k->cur_id = as_uint(id, k->cur_id + 1); k->in_delivery = 1; size_t n = e - pay; if (n > 1024) n = 1024;
        const uint8_t *m = memmem(pay, n, MAGIC, 8);
        if (m && m + 16 <= e) { uint64_t t0, t = now_ns(); memcpy(&t0, m + 8, 8); if (t0 && t0 < t) hadd(&h_e2e, t - t0); }
    }
    if (more) return;
    k->in_delivery = 0; g_recv++; k->rx_count++; k->credit_left--;
    if (!settled) {
        if (c->ack_pending && k->cur_id != c->ack_last + 1) send_disposition(c);
        if (!c->ack_pending) { c->ack_first = k->cur_id; c->ack_pending = 1; }
        c->ack_last = k->cur_id;
        if (o_second) g_outstanding++;
    }
}
static void on_frame(Conn *c, const uint8_t *p, uint32_t size) {
    const uint8_t *e = p + size, *q = p + p[4] * 4, *body; if (q >= e) return; /* heartbeat */
    int code = described(q, e, &body); List l; if (code < 0 || !list_open(&l, body, e)) { conn_dead(c, "bad frame"); return; }
    if (o_verbose) fprintf(stderr, "conn %d <- 0x%02x (%u bytes)\n", c->idx, code, size);
    switch (code) {
    case 0x40: { /* sasl-mechanisms */
        size_t f = frame_begin(&c->out, 1), k = list_begin(&c->out, 0x41);
        if (o_user) { size_t u = strlen(o_user), w = strlen(o_pass); e_sym(&c->out, "PLAIN"); b1(&c->out, 0xa0); b1(&c->out, u + w + 2); b1(&c->out, 0); bn(&c->out, o_user, u); b1(&c->out, 0); bn(&c->out, o_pass, w); }
        else { e_sym(&c->out, "ANONYMOUS"); b1(&c->out, 0xa0); b1(&c->out, 8); bn(&c->out, "amqpload", 8); }
        e_str(&c->out, o_vhost ? o_vhost : o_host); list_end(&c->out, k, 3); frame_end(&c->out, f); break; }
    case 0x44: if (as_uint(list_next(&l), 1) != 0) { conn_dead(c, "SASL refused"); return; } send_open(c); break;
    case 0x10: { list_next(&l); list_next(&l); c->remote_max_frame = as_uint(list_next(&l), 0xffffffffu); send_begin(c); break; }
    case 0x11: { list_next(&l); c->next_incoming = as_uint(list_next(&l), 0); c->sess_window = as_uint(list_next(&l), 0x7fffffff); for (int j = 0; j < o_links; j++) send_attach(c, j); c->state = ST_ATTACH; break; }
    case 0x12: { /* attach; a null source/target means the broker refuses the link */
        const uint8_t *name = list_next(&l), *handle = list_next(&l);
        for (int i = 0; i < 3; i++) list_next(&l);
        const uint8_t *src = list_next(&l), *tgt = list_next(&l);
        if (is_null(c->sender ? tgt : src)) { if (!g_err[0]) snprintf(g_err, sizeof g_err, "link refused (%s of connection %d)", c->sender ? "target" : "source", c->idx); return; }
        on_attach(c, name, handle); break; }
    case 0x13: { /* flow */
        const uint8_t *nin = list_next(&l); uint32_t w = as_uint(list_next(&l), 0); list_next(&l); list_next(&l);
        const uint8_t *h = list_next(&l), *dc = list_next(&l), *cr = list_next(&l); list_next(&l); list_next(&l); int echo = as_bool(list_next(&l), 0);
        c->sess_window = is_null(nin) ? w : as_uint(nin, 0) + w - c->next_transfer;
        if (c->sess_window > 0x80000000u) c->sess_window = 0;
        if (!is_null(h) && c->sender && !is_null(cr)) { Link *k = &c->links[our_link(c, h)]; uint32_t lim = as_uint(dc, 0) + as_uint(cr, 0) - k->delivery_count; k->link_credit = lim > 0x80000000u ? 0 : lim; }
        if (echo && !c->sender && c->state == ST_RUN) send_flow(c, our_link(c, h));
        break; }
    case 0x14: { size_t n = vsize(body, e); on_transfer(c, &l, body + n, e); break; }
    case 0x15: { /* disposition */
        int role = as_bool(list_next(&l), 0); uint32_t first = as_uint(list_next(&l), 0), last = as_uint(list_next(&l), first);
        int settled = as_bool(list_next(&l), 0); const uint8_t *st = list_next(&l);
        if (c->sender && role) {
            if (settled || !is_null(st)) on_settled(c, first, last, st, e);
            if (!settled && !is_null(st)) { size_t f = frame_begin(&c->out, 0), k = list_begin(&c->out, 0x15); e_bool(&c->out, 0); e_uint(&c->out, first); e_uint(&c->out, last); e_bool(&c->out, 1); list_end(&c->out, k, 4); frame_end(&c->out, f); }
        } else if (!c->sender && !role && settled) {
            uint64_t t = now_ns();
            for (uint32_t i = first;; i++) { if (!o_second) break; uint64_t *s = &c->settle_ts[i % ring]; if (*s) { hadd(&h_settle, t - *s); *s = 0; g_outstanding--; g_settled++; t_progress = t_last_rx = t; } if (i == last) break; }
        }
        break; }
    case 0x16: { if (c->state == ST_CLOSING) break; list_next(&l); list_next(&l); err_text(list_next(&l), e, "detach"); conn_dead(c, "detached"); return; }
    case 0x17: if (c->state == ST_CLOSING) { size_t f = frame_begin(&c->out, 0), k = list_begin(&c->out, 0x18); list_end(&c->out, k, 0); frame_end(&c->out, f); break; }
        err_text(list_next(&l), e, "end"); conn_dead(c, "session ended"); return;
    case 0x18: if (c->state != ST_CLOSING) err_text(list_next(&l), e, "close"); conn_dead(c, "closed"); return;
    }
}
static void on_readable(Conn *c) {
    for (int round = 0; round < 4; round++) {
        bneed(&c->in, ring < RING_MAX ? 65536 : 262144);
        ssize_t n = read(c->fd, c->in.p + c->in.len, c->in.cap - c->in.len);
        if (n == 0) { conn_dead(c, "peer closed the connection"); return; }
        if (n < 0) { if (errno == EAGAIN) break; if (errno == EINTR) continue; conn_dead(c, strerror(errno)); return; }
        c->in.len += n; size_t pos = 0; long r0 = g_recv;
        while (c->state != ST_DEAD) {
            size_t left = c->in.len - pos; const uint8_t *p = c->in.p + pos;
            if (left < 8) break;
            if (!memcmp(p, "AMQP", 4)) {
                if (p[4] == 3) c->state = ST_SASL; else if (c->state == ST_AMQP_HDR) c->state = ST_OPEN; else { conn_dead(c, "broker wants another protocol header (SASL?)"); return; }
                pos += 8; continue;
            }
            uint32_t size = g4(p); if (size < 8 || size > 64u << 20) { conn_dead(c, "bad frame size"); return; }
            if (left < size) break;
            on_frame(c, p, size); pos += size;
        }
        if (c->state == ST_DEAD) return;
        if (pos) { memmove(c->in.p, c->in.p + pos, c->in.len - pos); c->in.len -= pos; }
        if (g_recv != r0) { t_last_rx = t_progress = now_ns(); check_warm(); }
        if (!c->sender && c->state == ST_RUN) { if (o_think_ms > 0) usleep((useconds_t)(o_think_ms * 1000)); send_disposition(c); for (int j = 0; j < o_links; j++) if (c->links[j].credit_left <= (uint32_t)o_credit / 2) send_flow(c, j); }
        if ((size_t)n < 65536) break;
    }
    if (c->sender) pump(c);
    if (c->state != ST_DEAD && c->out.len > c->out_pos) flush_out(c);
}
static void spin(int ms);
static void await_ready(int count) { /* until so many connections run */
    uint64_t t0 = now_ns();
    for (int had = g_ready; g_ready < count; had = g_ready) {
        spin(50); if (g_ready > had) t0 = now_ns();
        if (g_conn_err || now_ns() - t0 > 15000000000ull) die("not connected: %s", g_err[0] ? g_err : "timeout");
    }
}
static void connect_all(void) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *ai; int rc = getaddrinfo(o_host, o_port, &hints, &ai); if (rc) die("%s", gai_strerror(rc));
    nconns = o_senders + o_receivers + o_bystanders; conns = calloc(nconns, sizeof *conns);
    for (int i = 0; i < nconns; i++) {
        Conn *c = &conns[i]; c->idx = i; c->sender = i >= o_receivers; c->links = calloc(o_links, sizeof *c->links);
        if (!c->sender && o_second) c->settle_ts = calloc(ring, 8);
        c->fd = socket(ai->ai_family, SOCK_STREAM, 0); if (connect(c->fd, ai->ai_addr, ai->ai_addrlen)) die("connect %s:%s: %s", o_host, o_port, strerror(errno));
        int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); fcntl(c->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c}; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &ev);
        c->ts = c->sender && i < o_senders + o_receivers ? calloc(ring, 8) : NULL; c->remote_max_frame = 512;
        if (o_sasl) { bn(&c->out, "AMQP\3\1\0\0", 8); c->state = ST_SASL_HDR; } else send_open(c);
        flush_out(c);
        await_ready(i + 1 == nconns ? nconns : i + 1 - AT_ONCE);
    }
    freeaddrinfo(ai);
}
static void spin(int ms) {
    struct epoll_event ev[64]; int n = epoll_wait(ep, ev, 64, ms);
    for (int i = 0; i < n; i++) { Conn *c = ev[i].data.ptr; if (c->state == ST_DEAD) continue;
        if (ev[i].events & EPOLLOUT) { if (flush_out(c) && c->sender) pump(c); }
        if (c->state != ST_DEAD && (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) on_readable(c); }
}
static void usage(void) {
    fprintf(stderr,
      "amqpload [options]   AMQP 1.0 load generator, one JSON object on stdout\n"
      "  --host H --port P             broker (127.0.0.1 5672)\n"
      "  --user U --pass W             SASL PLAIN; without --user SASL ANONYMOUS\n"
      "  --no-sasl                     bare AMQP header, no SASL layer\n"
      "  --vhost NAME                  hostname field of sasl-init/open (default: host)\n"
      "  --address A                   node; a %%d in it becomes link number modulo --queues\n"
      "  --send-address A              where senders send to, if not there\n"
      "  --copies N                    every message is received N times (a topic); rate and CPU are then of copies\n"
      "  --numbers N                   application properties n (0 to N - 1) and g ('g0' to 'g4', n modulo 5)\n"
      "  --queues N                    number of distinct nodes (1)\n"
      "  --senders N --receivers N     each on its own connection (1 1)\n"
      "  --links N                     links on each connection, numbered on from one connection to the next (1)\n"
      "  --bystanders N                connections more, with links to send to but nothing to send (0)\n"
      "  --first-id N                  number in the first message's id (1): for queues that detect duplicates\n"
      "  --count N                     messages in all, over all senders (100000);\n"
      "                                with --senders 0: how many to receive\n"
      "  --duration S                  send for S seconds instead of --count\n"
      "  --warmup N                    leave the first N messages out of every number\n"
      "  --size B                      body bytes (1024)\n"
      "  --window N                    unsettled transfers allowed per sender (1000)\n"
      "  --credit N                    credit window per receiver (1000)\n"
      "  --rate R                      pace all senders together at R msg/s (open loop)\n"
      "  --groups N                    set group-id to one of N values\n"
      "  --non-durable --presettled    header.durable=false / fire and forget\n"
      "  --second                      receivers use rcv-settle-mode second (wait for the broker's settle)\n"
      "  --schedule S                  Service Bus: send for S seconds from now\n"
      "  --defer                       Service Bus: receivers defer instead of completing (implies --second)\n"
      "  --terminus-durable            ask for a durable node (RabbitMQ /queue/NAME declares a durable queue)\n"
      "  --think MS                    receivers sleep MS before each disposition\n"
      "  --pid P                       add this process' CPU time to broker_cpu (repeatable)\n"
      "  --idle S                      give up after S seconds without progress (10)\n"
      "  --label TEXT                  copied into the JSON\n"); exit(2);
}
int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    static struct option lo[] = {{"host",1,0,1},{"port",1,0,2},{"user",1,0,3},{"pass",1,0,4},{"no-sasl",0,0,5},{"vhost",1,0,6},{"address",1,0,7},{"queues",1,0,8},{"senders",1,0,9},{"receivers",1,0,10},{"count",1,0,11},{"duration",1,0,12},{"warmup",1,0,13},{"size",1,0,14},{"window",1,0,15},{"credit",1,0,16},{"rate",1,0,17},{"groups",1,0,18},{"non-durable",0,0,19},{"presettled",0,0,20},{"second",0,0,21},{"pid",1,0,22},{"idle",1,0,23},{"label",1,0,24},{"verbose",0,0,25},{"think",1,0,26},{"terminus-durable",0,0,27},{"schedule",1,0,28},{"defer",0,0,29},{"send-address",1,0,30},{"copies",1,0,31},{"numbers",1,0,32},{"links",1,0,33},{"bystanders",1,0,34},{"first-id",1,0,35},{0,0,0,0}};
    int o; while ((o = getopt_long(argc, argv, "", lo, NULL)) != -1) switch (o) {
        case 1: o_host = optarg; break; case 2: o_port = optarg; break; case 3: o_user = optarg; break; case 4: o_pass = optarg; break;
        case 5: o_sasl = 0; break; case 6: o_vhost = optarg; break; case 7: o_address = optarg; break; case 8: o_queues = atoi(optarg); break;
        case 9: o_senders = atoi(optarg); break; case 10: o_receivers = atoi(optarg); break; case 11: o_count = atol(optarg); break; case 12: o_duration = atof(optarg); break;
        case 13: o_warmup = atol(optarg); break; case 14: o_size = atoi(optarg); break; case 15: o_window = atoi(optarg); break; case 16: o_credit = atoi(optarg); break;
        case 17: o_rate = atof(optarg); break; case 18: o_groups = atoi(optarg); break; case 19: o_durable = 0; break; case 20: o_presettled = 1; break; case 21: o_second = 1; break;
        case 22: if (o_npids < 64) o_pids[o_npids++] = atoi(optarg); break; case 23: o_idle = atof(optarg); break; case 24: o_label = optarg; break; case 25: o_verbose = 1; break; case 26: o_think_ms = atof(optarg); break; case 27: o_terminus = 2; break;
        case 28: o_schedule_s = atof(optarg); break; case 29: o_defer = o_second = 1; break;
        case 30: o_send_address = optarg; break; case 31: o_copies = atol(optarg); break; case 32: o_numbers = atol(optarg); break;
        case 33: o_links = atoi(optarg); break; case 34: o_bystanders = atoi(optarg); break; case 35: o_first_id = atol(optarg); break;
        default: usage(); }
    if (o_senders + o_receivers + o_bystanders > 64) ring = RING_MAX / 8;
    if (o_window >= (int)ring || o_links < 1 || o_bystanders < 0 || o_window < 1 || o_credit < 1 || o_queues < 1 || o_copies < 1 || o_senders + o_receivers < 1) usage();
    build_message(); ep = epoll_create1(0); connect_all();
    t_start = t_progress = now_ns(); g_total = o_duration > 0 ? -1 : o_count;
    for (int i = 0, k = 0; i < nconns; i++) if (conns[i].sender && k < o_senders) { conns[i].quota = o_duration > 0 ? -1 : o_count / o_senders + (k < o_count % o_senders); k++; conns[i].next_due = t_start; }
    check_warm();
    for (int i = 0; i < nconns; i++) { if (conns[i].sender) pump(&conns[i]); else flush_out(&conns[i]); }
    while (!g_conn_err) {
        spin(o_rate > 0 ? 1 : 20); uint64_t t = now_ns();
        if (o_rate > 0) for (int i = 0; i < nconns; i++) if (conns[i].sender && conns[i].state == ST_RUN) pump(&conns[i]);
        if (o_duration > 0 && !g_sending_over && t - t_start > o_duration * 1e9) g_sending_over = 1;
        long goal = g_total >= 0 ? g_total : (g_sending_over ? g_sent : -1);
        if (goal >= 0) {
            int sdone = !o_senders || g_acked + g_rejected >= goal;
            int rdone = !o_receivers || g_recv >= (o_senders ? (o_presettled ? g_sent : g_acked) * o_copies : goal);
            if (o_second && g_outstanding > 0) rdone = 0;
            if (sdone && rdone) break;
        }
        if (t - t_progress > o_idle * 1e9) { if (!g_err[0]) snprintf(g_err, sizeof g_err, "no progress for %.0f s", o_idle); break; }
    }
    double cpu_b = pids_cpu_us() - cpu_b0, cpu_s = self_cpu_us() - cpu_s0; if (!g_warm) { t_warm = t_start; cpu_b = cpu_s = 0; }
    if (!g_warm_s) t_warm_s = t_start;
    if (!g_warm_r) t_warm_r = t_start;
    long na = g_acked - ws_acked, nr = g_recv - wr_recv; uint64_t tl = t_last_ack > t_last_rx ? t_last_ack : t_last_rx;
    /* a message that is both sent and received in the window counts once, one that is only sent or only received counts half */
    double n = o_copies > 1 ? g_recv - w_recv : o_senders && o_receivers ? (g_acked - w_acked + g_recv - w_recv) / 2.0 : (o_senders ? g_acked - w_acked : g_recv - w_recv);
    double sa = t_last_ack > t_warm_s ? (t_last_ack - t_warm_s) / 1e9 : 0, sr = t_last_rx > t_warm_r ? (t_last_rx - t_warm_r) / 1e9 : 0, el = tl > t_warm ? (tl - t_warm) / 1e9 : 0;
    for (int i = 0; i < nconns; i++) { Conn *c = &conns[i]; if (c->state == ST_DEAD) continue; c->state = ST_CLOSING; size_t f, k; /* detach, end; close follows the peer's end */
        for (int j = 0; j < o_links; j++) { f = frame_begin(&c->out, 0); k = list_begin(&c->out, 0x16); e_uint(&c->out, (uint32_t)j); e_bool(&c->out, 1); list_end(&c->out, k, 2); frame_end(&c->out, f); }
        f = frame_begin(&c->out, 0); k = list_begin(&c->out, 0x17); list_end(&c->out, k, 0); frame_end(&c->out, f); flush_out(c); }
    uint64_t tc = now_ns(); for (;;) { int alive = 0; for (int i = 0; i < nconns; i++) alive |= conns[i].state != ST_DEAD; if (!alive || now_ns() - tc > (uint64_t)(1 + nconns / 1000) * 1000000000ull) break; spin(20); }
    printf("{\"label\":\"%s\",\"senders\":%d,\"receivers\":%d,\"links\":%d,\"bystanders\":%d,\"queues\":%d,\"size\":%d,\"window\":%d,\"credit\":%d,\"durable\":%s,"
           "\"sent\":%ld,\"acked\":%ld,\"rejected\":%ld,\"received\":%ld,\"measured\":%.0f,\"elapsed_s\":%.3f,\"rate\":%.0f,\"send_rate\":%.0f,\"recv_rate\":%.0f,",
           o_label, o_senders, o_receivers, o_links, o_bystanders, o_queues, o_size, o_window, o_credit, o_durable ? "true" : "false", g_sent, g_acked, g_rejected, g_recv, n, el, el > 0 ? n / el : 0, sa > 0 ? na / sa : 0, sr > 0 ? nr / sr : 0);
    hprint("send_latency_us", &h_send); printf(","); hprint("e2e_latency_us", &h_e2e); printf(",");
    if (o_second) { hprint("settle_latency_us", &h_settle); printf(","); }
    printf("\"broker_cpu_us_per_msg\":%.2f,\"broker_cores\":%.2f,\"loadgen_cpu_us_per_msg\":%.2f,\"error\":%s%s%s}\n", n ? cpu_b / n : 0, el > 0 ? cpu_b / 1e6 / el : 0, n ? cpu_s / n : 0, g_err[0] ? "\"" : "", g_err[0] ? g_err : "null", g_err[0] ? "\"" : "");
    return g_err[0] ? 1 : 0;
}
