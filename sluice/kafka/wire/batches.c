/* Kafka's record batches (format 2) to joined values.
 *
 * `sluice_next` walks over the batches of one range in a fetch response and fills three arrays: the
 * values of messages joined by newlines, their offsets, and where each ends. It stops when
 * these are full, when a batch has to be decompressed, at the end of the range, or of the
 * input, and goes on from there when it is called again. Or it holds some messages only, and all of
 * them: dead letters need that. It allocates nothing, keeps nothing
 * but the struct that the caller owns, and knows neither Python nor the network.
 *
 * The input is not trusted: every length is checked against what is left before it is used.
 */

#include <stdint.h>
#include <string.h>

#define HEADER_BYTES 61 /* of a batch, up to its first record */
#define LENGTH_COVERS_FROM 12
#define CRC_COVERS_FROM 21
#define RECORD_BYTES_MIN 7
#define VARINT_BYTES_MAX 10

enum attribute { CODEC = 7, APPEND_TIME = 8, TRANSACTIONAL = 16, CONTROL = 32 };
enum codec { LZ4 = 3 };

enum status {
    INPUT_DONE = 0,  /* no whole batch is left */
    FULL = 1,        /* deliver what is held, then call again */
    COMPRESSED = 2,  /* the batch at hand: unpack its records, then go on as for MORE */
    RANGE_DONE = 3,  /* position is the end */
    HEAVY = 4,       /* the message at heavy_at crosses the limit */
    MORE = 5,        /* unpacked records from records_at on, at least records_needed bytes */
    NO_BATCH = 6,    /* only inside: no whole batch is left */
    BROKEN_LENGTH = -1,
    BROKEN_MAGIC = -2,
    BROKEN_CRC = -3,
    BROKEN_RECORD = -4,
    BROKEN_OFFSET = -5,
    BROKEN_COUNT = -6,
};

/* The caller's struct; native.py holds the same list. */
struct parser {
    /* the batches of a fetch response: set with at = 0 */
    const uint8_t *input;
    int64_t input_bytes;
    int64_t at; /* the next batch */
    int64_t *aborted; /* pairs (producer id, first offset), by first offset; overwritten */
    int64_t aborted_count;
    int64_t aborted_begin;
    /* the batch at hand */
    const uint8_t *records;
    int64_t records_bytes;
    int64_t records_at;
    int64_t records_left;
    int64_t records_needed;
    int64_t is_whole; /* nothing comes after records_bytes */
    int64_t delta_min; /* of the next record */
    int64_t base_offset;
    int64_t last_offset;
    int64_t first_ms; /* timestamps of records are told as differences from it */
    int64_t appended_ms; /* not -1: the timestamp of all its records */
    int64_t codec; /* not 0: the records are still compressed with it */
    uint8_t *window; /* where records of small batches are unpacked */
    int64_t window_bytes;
    /* the range */
    int64_t position; /* every offset below is done */
    int64_t end;
    int64_t base; /* is added to the offsets that are held */
    int64_t oldest_ms; /* the least timestamp of its messages; INT64_MAX: none has one */
    /* all ranges that are read together */
    int64_t bytes_max;
    int64_t messages;
    int64_t bytes; /* keys and values */
    int64_t tombstones;
    int64_t addressed; /* messages whose headers may name the one table entry that they are for */
    int64_t heavy_at; /* an offset of the range */
    /* what is held for delivery */
    uint8_t *text;
    int64_t text_capacity;
    int64_t text_bytes;
    uint64_t *offsets;
    int64_t *ends; /* exclusive, without the newline */
    int64_t count_max;
    int64_t count;
    int64_t text_needed; /* FULL and nothing held: the text must have so much room */
    int64_t digits; /* what decode/digits.has_long_run would say */
    /* not NULL: only messages of these offsets, ascending, are held, each as its timestamp and what
     * its record has from the key on, without a newline; nothing is counted or weighed */
    const int64_t *wanted;
    int64_t wanted_count;
    int64_t wanted_at;
};

/* native.py compares. */
const int64_t sluice_parser_bytes = sizeof(struct parser);

static uint16_t be16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static uint32_t be32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

static uint64_t be64(const uint8_t *p) {
    return (uint64_t)be32(p) << 32 | be32(p + 4);
}

/* ---- CRC32C ---- */

static uint32_t crc_table[8][256];

static void __attribute__((constructor)) make_crc_table(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        crc_table[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int slice = 1; slice < 8; slice++)
            crc_table[slice][n] =
                crc_table[slice - 1][n] >> 8 ^ crc_table[0][crc_table[slice - 1][n] & 255];
}

static uint32_t crc32c_by_table(const uint8_t *p, int64_t bytes) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                              (uint32_t)p[3] << 24);
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^
              crc_table[5][low >> 16 & 255] ^ crc_table[4][low >> 24] ^ crc_table[3][p[4]] ^
              crc_table[2][p[5]] ^ crc_table[1][p[6]] ^ crc_table[0][p[7]];
    }
    for (; bytes > 0; bytes--, p++) crc = crc >> 8 ^ crc_table[0][(crc ^ *p) & 255];
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_by_processor(const uint8_t *p,
                                                                      int64_t bytes) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    uint32_t rest = (uint32_t)crc;
    for (; bytes > 0; bytes--, p++) rest = __builtin_ia32_crc32qi(rest, *p);
    return ~rest;
}
#endif

/* `by_table`: as on a processor without an instruction for it. */
uint32_t sluice_crc32c(const uint8_t *p, int64_t bytes, int64_t by_table) {
#if defined(__x86_64__)
    if (!by_table && __builtin_cpu_supports("sse4.2")) return crc32c_by_processor(p, bytes);
#endif
    (void)by_table;
    return crc32c_by_table(p, bytes);
}

/* ---- digits ---- */

typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint64_t words2 __attribute__((vector_size(16)));

#define DIGITS_MAX 18

/* Whether more than 18 digits follow each other around the eight at `at`. */
static int is_long_run(const uint8_t *text, int64_t bytes, int64_t at) {
    int64_t from = at, to = at;
    while (from > 0 && (uint8_t)(text[from - 1] - '0') < 10) from--;
    while (to < bytes && (uint8_t)(text[to] - '0') < 10) to++;
    return to - from > DIGITS_MAX;
}

/* Whether there is a long run of digits: each fills an aligned word of eight. */
static int has_long_run(const uint8_t *text, int64_t bytes) {
    int64_t at = 0;
    for (; bytes - at >= 16; at += 16) {
        bytes16 piece;
        memcpy(&piece, text + at, 16);
        words2 digits = (words2)((bytes16)(piece - '0') < 10);
        if (__builtin_expect((digits[0] == UINT64_MAX) | (digits[1] == UINT64_MAX), 0) &&
            ((digits[0] == UINT64_MAX && is_long_run(text, bytes, at)) ||
             (digits[1] == UINT64_MAX && is_long_run(text, bytes, at + 8))))
            return 1;
    }
    for (; at < bytes; at++)
        if ((uint8_t)(text[at] - '0') < 10 && is_long_run(text, bytes, at)) return 1;
    return 0;
}

/* ---- LZ4 ----
 *
 * Producers that write to many partitions write many small batches, and what a call into another
 * library costs for each would be more than what unpacking costs. Only what is usual is unpacked
 * here: whatever is broken, larger, or carries checksums of its own is left to that library.
 */

enum { LZ4_MAGIC = 0x184D2204, LZ4_TOKEN_MAX = 15, LZ4_MATCH_MIN = 4, STRIDE = 16 };
enum lz4_flag { VERSION_MASK = 0xC0, VERSION_1 = 0x40, INDEPENDENT = 0x20 };
#define LZ4_STORED 0x80000000u /* the block is not compressed */

static uint32_t le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The bytes by which a length of 15 goes on. False when they do not end before `stop`. */
static inline int lz4_length(const uint8_t **p, const uint8_t *stop, int64_t *length) {
    if (*length < LZ4_TOKEN_MAX) return 1;
    while (*p < stop) {
        uint8_t byte = *(*p)++;
        *length += byte;
        if (byte < 255) return 1;
    }
    return 0;
}

/* Copies `length` bytes, and up to 15 more if both sides have room for them. A source less than 16
 * bytes before `out` repeats itself, as LZ4 means it. */
static inline void lz4_copy(uint8_t *out, const uint8_t *from, int64_t length, int is_roomy) {
    if (is_roomy) {
        for (int64_t at = 0; at < length; at += STRIDE) memcpy(out + at, from + at, STRIDE);
    } else {
        for (int64_t at = 0; at < length; at++) out[at] = from[at];
    }
}

/* Where the unpacked bytes of one block end; NULL: it is broken, or there is no room for them.
 * `begin`: of what was unpacked before, to which a block may refer. */
static uint8_t *lz4_block(const uint8_t *p, const uint8_t *stop, const uint8_t *begin, uint8_t *out,
                          const uint8_t *end) {
    while (p < stop) {
        uint8_t token = *p++;
        int64_t length = token >> 4;
        if (!lz4_length(&p, stop, &length) || length > stop - p || length > end - out) return NULL;
        lz4_copy(out, p, length, length + STRIDE <= stop - p && length + STRIDE <= end - out);
        p += length;
        out += length;
        if (p == stop) return out; /* the last sequence has no match */
        if (stop - p < 2) return NULL;
        int64_t back = p[0] | p[1] << 8;
        p += 2;
        length = token & LZ4_TOKEN_MAX;
        if (!lz4_length(&p, stop, &length)) return NULL;
        length += LZ4_MATCH_MIN;
        if (back == 0 || back > out - begin || length > end - out) return NULL;
        lz4_copy(out, out - back, length, back >= STRIDE && length + STRIDE <= end - out);
        out += length;
    }
    return NULL;
}

/* Unpack one frame: how many bytes it has; -1: not here. */
int64_t sluice_lz4_frame(const uint8_t *p, int64_t bytes, uint8_t *window, int64_t window_bytes) {
    const uint8_t *stop = p + bytes;
    uint8_t *out = window;
    if (bytes < 7 || le32(p) != LZ4_MAGIC || (p[4] & VERSION_MASK) != VERSION_1 ||
        (p[4] & ~(VERSION_MASK | INDEPENDENT)))
        return -1;
    p += 7; /* magic, flags, size of blocks, checksum of these */
    while (stop - p >= 4) {
        uint32_t size = le32(p);
        int64_t length = size & ~LZ4_STORED;
        p += 4;
        if (size == 0) return p == stop ? out - window : -1;
        if (length > stop - p) return -1;
        if (size & LZ4_STORED) {
            if (length > window + window_bytes - out) return -1;
            memcpy(out, p, (size_t)length);
            out += length;
        } else {
            out = lz4_block(p, p + length, window, out, window + window_bytes);
            if (out == NULL) return -1;
        }
        p += length;
    }
    return -1;
}

/* ---- batches ---- */

/* Zigzag; false when it does not end within `stop` or is longer than ten bytes. */
static inline int varint(const uint8_t **p, const uint8_t *stop, int64_t *out) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && *p < stop; shift += 7) {
        uint8_t byte = *(*p)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *out = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
            return 1;
        }
    }
    return 0;
}

/* The offset after the last whole batch, or `otherwise`; `largest`: the bytes of the largest whole
 * batch. Only for asking for more early. */
int64_t sluice_batches_end(const uint8_t *input, int64_t bytes, int64_t otherwise,
                           int64_t *largest) {
    int64_t at = 0;
    *largest = 0;
    while (bytes - at >= HEADER_BYTES) {
        int64_t length = (int32_t)be32(input + at + 8);
        if (length < HEADER_BYTES - LENGTH_COVERS_FROM ||
            length > bytes - at - LENGTH_COVERS_FROM)
            break;
        otherwise = (int64_t)(be64(input + at) + (uint64_t)(int32_t)be32(input + at + 23) + 1);
        at += LENGTH_COVERS_FROM + length;
        if (LENGTH_COVERS_FROM + length > *largest) *largest = LENGTH_COVERS_FROM + length;
    }
    return otherwise;
}

/* Whether a transaction of this producer that holds this batch was aborted. */
static int64_t find_aborted(struct parser *s, int64_t producer) {
    while (s->aborted_begin < s->aborted_count && s->aborted[2 * s->aborted_begin] < 0)
        s->aborted_begin++;
    for (int64_t i = s->aborted_begin; i < s->aborted_count; i++) {
        if (s->aborted[2 * i + 1] > s->last_offset) break;
        if (s->aborted[2 * i] == producer) return i;
    }
    return -1;
}

/* An abort marker ends the transaction. Returns false when the control record is broken. */
static int read_marker(struct parser *s, const uint8_t *p, const uint8_t *stop, int64_t producer) {
    int64_t length, skipped;
    if (!varint(&p, stop, &length) || length < 0 || length > stop - p) return 0;
    stop = p + length;
    if (p == stop) return 0;
    p++;
    if (!varint(&p, stop, &skipped) || !varint(&p, stop, &skipped)) return 0;
    if (!varint(&p, stop, &length) || length < 4 || length > stop - p) return 0;
    if (be16(p + 2) == 0) {
        int64_t index = find_aborted(s, producer);
        if (index >= 0) s->aborted[2 * index] = -1;
    }
    return 1;
}

/* Take up the batch at `at`. 0: its records are at hand, or it was skipped. */
static int open_batch(struct parser *s) {
    const uint8_t *batch = s->input + s->at;
    int64_t left = s->input_bytes - s->at;
    if (left < 17) return NO_BATCH;
    int64_t length = (int32_t)be32(batch + 8);
    if (batch[16] != 2) return BROKEN_MAGIC;
    if (length < HEADER_BYTES - LENGTH_COVERS_FROM) return BROKEN_LENGTH;
    if (length > left - LENGTH_COVERS_FROM) return NO_BATCH; /* cut by the fetch's size */
    length += LENGTH_COVERS_FROM;
    int64_t delta = (int32_t)be32(batch + 23);
    s->base_offset = (int64_t)be64(batch);
    if (s->base_offset < 0 || delta < 0 || s->base_offset > INT64_MAX - delta - 1)
        return BROKEN_OFFSET;
    s->last_offset = s->base_offset + delta;
    if (s->base_offset >= s->end) {
        if (s->position < s->end) s->position = s->end;
        return RANGE_DONE;
    }
    if (sluice_crc32c(batch + CRC_COVERS_FROM, length - CRC_COVERS_FROM, 0) != be32(batch + 17))
        return BROKEN_CRC;
    uint16_t attributes = be16(batch + 21);
    s->first_ms = (int64_t)be64(batch + 27);
    s->appended_ms = attributes & APPEND_TIME ? (int64_t)be64(batch + 35) : -1;
    int64_t producer = (int64_t)be64(batch + 43);
    int64_t count = (int32_t)be32(batch + 57);
    if (count < 0) return BROKEN_COUNT;
    s->at += length;
    s->records = batch + HEADER_BYTES;
    s->records_bytes = length - HEADER_BYTES;
    s->records_at = 0;
    s->records_left = count;
    s->delta_min = 0;
    s->is_whole = 1;
    s->codec = attributes & CODEC;
    if (attributes & CONTROL) {
        /* also of a batch below the position: its transaction ends here */
        if (count > 0 &&
            !read_marker(s, s->records, s->records + s->records_bytes, producer))
            return BROKEN_RECORD;
        s->records_left = 0;
    } else if (s->last_offset < s->position ||
               ((attributes & TRANSACTIONAL) && find_aborted(s, producer) >= 0)) {
        s->records_left = 0;
    }
    if (s->records_left == 0) {
        s->codec = 0;
        s->records_at = s->records_bytes;
    }
    if (s->codec == 0 && s->records_left > s->records_bytes / RECORD_BYTES_MIN)
        return BROKEN_COUNT;
    return 0;
}

struct record {
    int64_t after_ms, delta, key, value; /* value -1: a tombstone */
    const uint8_t *body, *data, *next; /* from the key's length on, the value, the next record */
};

/* One record of the batch at hand: 0, MORE, or what is broken. */
static int read_record(struct parser *s, const uint8_t *p, const uint8_t *stop, struct record *r) {
    int64_t length;
    const uint8_t *begin = p;
    if (!varint(&p, stop, &length)) {
        s->records_needed = VARINT_BYTES_MAX;
        return !s->is_whole && stop - begin < VARINT_BYTES_MAX ? MORE : BROKEN_RECORD;
    }
    if (length < RECORD_BYTES_MIN - 1 || length > INT32_MAX) return BROKEN_RECORD;
    if (length > stop - p) {
        s->records_needed = p - begin + length;
        return s->is_whole ? BROKEN_RECORD : MORE;
    }
    r->next = p + length;
    p++; /* attributes */
    if (!varint(&p, r->next, &r->after_ms) || !varint(&p, r->next, &r->delta))
        return BROKEN_RECORD;
    r->body = p;
    if (!varint(&p, r->next, &r->key)) return BROKEN_RECORD;
    if (r->key < -1 || r->key > r->next - p) return BROKEN_RECORD;
    if (r->key < 0) r->key = 0;
    p += r->key;
    if (!varint(&p, r->next, &r->value) || r->value < -1 || r->value > r->next - p)
        return BROKEN_RECORD;
    r->data = p; /* headers follow the value */
    if (r->delta < s->delta_min || r->delta > s->last_offset - s->base_offset)
        return BROKEN_OFFSET;
    return 0;
}

/* What names that entry: core/dead_letters.py. */
static const char TABLE_HEADER[] = "sluice.table";
enum { TABLE_HEADER_BYTES = sizeof TABLE_HEADER - 1 };

/* Whether the headers of a record may have it: whether its bytes stand anywhere in them. */
static int is_addressed(const struct record *r) {
    const uint8_t *p = r->data + (r->value < 0 ? 0 : r->value);
    while (r->next - p >= TABLE_HEADER_BYTES) {
        p = memchr(p, TABLE_HEADER[0], (size_t)(r->next - p) - TABLE_HEADER_BYTES + 1);
        if (p == NULL) return 0;
        if (memcmp(p, TABLE_HEADER, TABLE_HEADER_BYTES) == 0) return 1;
        p++;
    }
    return 0;
}

static int64_t time_of(const struct parser *s, const struct record *r) {
    if (s->appended_ms >= 0) return s->appended_ms;
    return (int64_t)((uint64_t)s->first_ms + (uint64_t)r->after_ms);
}

/* Hold a message if it is wanted: 0 or FULL. */
static int take_wanted(struct parser *s, const struct record *r, int64_t offset) {
    while (s->wanted_at < s->wanted_count && s->wanted[s->wanted_at] < offset) s->wanted_at++;
    if (s->wanted_at < s->wanted_count && s->wanted[s->wanted_at] == offset) {
        int64_t at_ms = time_of(s, r), size = r->next - r->body;
        int64_t needed = (int64_t)sizeof at_ms + size;
        if (s->count == s->count_max || needed > s->text_capacity - s->text_bytes) {
            s->text_needed = needed;
            return FULL;
        }
        uint8_t *out = s->text + s->text_bytes;
        memcpy(out, &at_ms, sizeof at_ms);
        memcpy(out + sizeof at_ms, r->body, (size_t)size);
        s->text_bytes += needed;
        s->offsets[s->count] = (uint64_t)offset;
        s->ends[s->count++] = s->text_bytes;
    }
    s->position = offset + 1;
    return 0;
}

/* Weigh a message and take it over: 0, HEAVY or FULL. */
static int take_message(struct parser *s, const struct record *r, int64_t offset) {
    int64_t size = r->key + (r->value < 0 ? 0 : r->value);
    if (s->bytes + size > s->bytes_max && s->messages > 0) {
        s->heavy_at = offset;
        return HEAVY;
    }
    if (r->value < 0) {
        s->tombstones++;
    } else {
        if (s->count == s->count_max || r->value >= s->text_capacity - s->text_bytes) {
            s->text_needed = r->value + 1;
            return FULL;
        }
        uint8_t *out = s->text + s->text_bytes;
        memcpy(out, r->data, (size_t)r->value);
        out[r->value] = '\n';
        s->offsets[s->count] = (uint64_t)(s->base + offset);
        s->ends[s->count++] = s->text_bytes + r->value;
        s->text_bytes += r->value + 1;
    }
    int64_t at_ms = time_of(s, r);
    if (at_ms >= 0 && at_ms < s->oldest_ms) s->oldest_ms = at_ms;
    s->addressed += is_addressed(r);
    s->messages++;
    s->bytes += size;
    s->position = offset + 1;
    return 0;
}

/* Unpack the records of the batch at hand. False: the caller must. */
static int unpack_records(struct parser *s) {
    if (s->codec != LZ4 || s->records_bytes > s->window_bytes / 8) return 0;
    int64_t bytes = sluice_lz4_frame(s->records, s->records_bytes, s->window, s->window_bytes);
    if (bytes < 0) return 0;
    s->records = s->window;
    s->records_bytes = bytes;
    s->codec = 0;
    return 1;
}

/* Take over the records of the batch at hand, until something is full. */
static int take_records(struct parser *s) {
    const uint8_t *stop = s->records + s->records_bytes;
    while (s->records_left > 0) {
        struct record record;
        int status = read_record(s, s->records + s->records_at, stop, &record);
        if (status) return status;
        int64_t offset = s->base_offset + record.delta;
        if (offset >= s->end) {
            s->position = s->end;
            s->records_left = 0;
            return RANGE_DONE;
        }
        if (offset >= s->position) {
            status = s->wanted == NULL ? take_message(s, &record, offset)
                                       : take_wanted(s, &record, offset);
            if (status) return status;
        }
        s->delta_min = record.delta + 1;
        s->records_at = record.next - s->records;
        s->records_left--;
    }
    return 0;
}

/* Call after the values were delivered. */
void sluice_delivered(struct parser *s) {
    s->text_bytes = s->count = 0;
    s->digits = 0;
}

static int walk(struct parser *s) {
    for (;;) {
        if (s->records_left > 0) {
            if (s->codec && !unpack_records(s)) return COMPRESSED;
            int status = take_records(s);
            if (status) return status;
        }
        if (s->records != NULL && !s->is_whole) { /* nothing may follow the last record */
            s->records_needed = 1;
            return s->records_at == s->records_bytes ? MORE : BROKEN_COUNT;
        }
        if (s->records != NULL && s->records_at != s->records_bytes) return BROKEN_COUNT;
        if (s->records != NULL) { /* a batch is over, with the holes at its end */
            if (s->last_offset >= s->position) s->position = s->last_offset + 1;
            s->records = NULL;
        }
        if (s->position >= s->end) {
            s->position = s->end;
            return RANGE_DONE;
        }
        int status = open_batch(s);
        if (status == NO_BATCH) return INPUT_DONE;
        if (status) return status;
    }
}

int64_t sluice_next(struct parser *s) { return walk(s); }

/* Call before the values are delivered: sets `digits`. */
void sluice_seal(struct parser *s) {
    if (s->count && s->wanted == NULL) s->digits = has_long_run(s->text, s->text_bytes - 1);
}
