/* Claims in segment files that processes of one machine share; local.py has their layout in words.
 *
 * A segment is a header, an index and records in the order of their claims. The caller has the lock
 * of the store, but it may be killed between any two stores to memory: a record is written first,
 * then counted, then found through the index. So the index never names a record that is not whole,
 * and a record that it does not name was never answered.
 *
 * After a power failure pages are as old as they like. Then the index is made anew from the
 * records, each of which has a checksum.
 */

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEY_BYTES 16
#define OWNER_BYTES 28
#define RECORD_BYTES 52

#define POSITION_BITS 25 /* of an index slot; the others are of the hash */
#define POSITION_MASK ((1u << POSITION_BITS) - 1)
#define AHEAD 24 /* keys, whose index slots are fetched meanwhile */

/* `_Header` of local.py. */
struct header {
    uint8_t magic[8];
    uint32_t layout, slot_bits, created_s, check;
    uint64_t index_at, records_at, records_max; /* bytes, bytes, records */
    uint64_t used, allocated, synced;           /* records */
    uint32_t latest_s, longest_s;
};

struct record {
    uint8_t key[KEY_BYTES], owner[OWNER_BYTES];
    uint32_t until, check; /* until 0: released */
};

_Static_assert(sizeof(struct record) == RECORD_BYTES, "records have no gaps");

enum state { UNKNOWN = 0, CLAIMED = 1, FREE = 2 };

static uint64_t mixed(uint64_t a)
{
    a ^= a >> 32;
    a *= 0x9e3779b97f4a7c15u;
    return a ^ a >> 29;
}

static uint64_t hash_of(const uint8_t *key)
{
    uint64_t a, b;
    memcpy(&a, key, 8);
    memcpy(&b, key + 8, 8);
    return mixed(mixed(a) + b);
}

static uint32_t check_of(const struct record *record)
{
    uint64_t words[6], sum = 0x5bd1e995;
    memcpy(words, record, sizeof words);
    for (int i = 0; i < 6; i++)
        sum = mixed(sum + words[i]);
    return (uint32_t)(sum >> 32) | 1; /* never 0, so that zeros are no record */
}

static uint32_t *index_of(struct header *segment)
{
    return (uint32_t *)((uint8_t *)segment + segment->index_at);
}

static struct record *records_of(struct header *segment)
{
    return (struct record *)((uint8_t *)segment + segment->records_at);
}

static uint64_t first_slot(const struct header *segment, uint64_t hash)
{
    return hash >> (64 - segment->slot_bits);
}

static uint32_t tag_of(uint64_t hash)
{
    return (uint32_t)hash << POSITION_BITS;
}

/* The slot of a key, or the free one in which it would be. A record that is not whole is none: the
 * search goes on behind it. */
static uint32_t *slot_of(struct header *segment, const uint8_t *key)
{
    uint64_t hash = hash_of(key), mask = (1ull << segment->slot_bits) - 1;
    uint32_t *index = index_of(segment), tag = tag_of(hash);
    for (uint64_t slot = first_slot(segment, hash);; slot = (slot + 1) & mask) {
        uint32_t found = index[slot];
        if (!found)
            return &index[slot];
        if ((found ^ tag) & ~POSITION_MASK || (found & POSITION_MASK) > segment->used)
            continue;
        const struct record *record = &records_of(segment)[(found & POSITION_MASK) - 1];
        if (!memcmp(record->key, key, KEY_BYTES) &&
            (!record->until || record->check == check_of(record)))
            return &index[slot];
    }
}

static struct record *record_of(struct header *segment, uint32_t slot)
{
    return slot ? &records_of(segment)[(slot & POSITION_MASK) - 1] : NULL;
}

static void fetch(struct header *segment, const uint8_t *key)
{
    __builtin_prefetch(&index_of(segment)[first_slot(segment, hash_of(key))]);
}

/* Whether the owner of a claim claims it for longer. */
static int is_longer(const struct record *record, const uint8_t *owner, int64_t until)
{
    return record->until < until && !memcmp(record->owner, owner, OWNER_BYTES);
}

/* Who has each key whose newest record is in this segment. */
static void look(struct header *segment, const uint8_t *keys, const uint8_t *owners, int64_t n,
                 int64_t until, uint32_t now, uint8_t *states, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n && states[i + AHEAD] == UNKNOWN)
            fetch(segment, keys + (i + AHEAD) * KEY_BYTES);
        if (states[i] != UNKNOWN)
            continue;
        const struct record *record = record_of(segment, *slot_of(segment, keys + i * KEY_BYTES));
        if (!record)
            continue;
        states[i] = record->until && record->until >= now &&
                            !is_longer(record, owners + i * OWNER_BYTES, until)
                        ? CLAIMED
                        : FREE;
        if (states[i] == CLAIMED)
            memcpy(out + i * OWNER_BYTES, record->owner, OWNER_BYTES);
    }
}

static void append(struct header *segment, uint32_t *slot, const uint8_t *key,
                   const uint8_t *owner, uint32_t until)
{
    struct record *record = &records_of(segment)[segment->used];
    memcpy(record->key, key, KEY_BYTES);
    memcpy(record->owner, owner, OWNER_BYTES);
    record->until = until;
    record->check = check_of(record);
    if (until > segment->latest_s)
        segment->latest_s = until;
    __atomic_store_n(&segment->used, segment->used + 1, __ATOMIC_RELEASE);
    uint32_t named = tag_of(hash_of(key)) | (uint32_t)segment->used;
    __atomic_store_n(slot, named, __ATOMIC_RELEASE);
}

/* Claims keys in the first of the segments, where none of these has them, and writes who has each.
 * `states` are zeros. Returns how many keys were done: fewer than n where the first one has room
 * for no more. */
int64_t sluice_claim(struct header **segments, int64_t count, const uint8_t *keys,
                     const uint8_t *owners, int64_t n, int64_t until, int64_t now,
                     uint8_t *states, uint8_t *out)
{
    struct header *newest = segments[0];
    for (int64_t s = 0; s < count; s++)
        look(segments[s], keys, owners, n, until, (uint32_t)now, states, out);
    if (until - now > newest->longest_s)
        newest->longest_s = (uint32_t)(until - now);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n && states[i + AHEAD] != CLAIMED)
            fetch(newest, keys + (i + AHEAD) * KEY_BYTES);
        if (states[i] == CLAIMED)
            continue;
        const uint8_t *key = keys + i * KEY_BYTES, *owner = owners + i * OWNER_BYTES;
        uint32_t *slot = slot_of(newest, key);
        const struct record *record = record_of(newest, *slot);
        if (record && record->until && record->until >= now && !is_longer(record, owner, until)) {
            owner = record->owner; /* an equal key stands further ahead */
        } else {
            if (newest->used == newest->allocated)
                return i;
            append(newest, slot, key, owner, (uint32_t)until);
        }
        memcpy(out + i * OWNER_BYTES, owner, OWNER_BYTES);
    }
    return n;
}

/* Takes claims back that these owners have. The records of which nobody knows on disk that they are
 * released count as not synced. */
void sluice_release(struct header **segments, int64_t count, const uint8_t *keys,
                    const uint8_t *owners, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t s = 0; s < count; s++) {
            struct record *record = record_of(segments[s], *slot_of(segments[s], keys + i * KEY_BYTES));
            if (!record)
                continue;
            if (!memcmp(record->owner, owners + i * OWNER_BYTES, OWNER_BYTES)) {
                uint64_t position = (uint64_t)(record - records_of(segments[s]));
                if (position < segments[s]->synced)
                    segments[s]->synced = position;
                __atomic_store_n(&record->until, 0, __ATOMIC_RELEASE);
            }
            break;
        }
    }
}

/* Makes the index anew, and what the header says of records. Of two of one key the later one
 * counts. `used` may have been written before records were, or after. */
void sluice_index(struct header *segment, int64_t allocated)
{
    struct record *records = records_of(segment);
    memset(index_of(segment), 0, sizeof(uint32_t) << segment->slot_bits);
    segment->allocated = (uint64_t)allocated;
    segment->used = segment->synced = 0;
    segment->latest_s = 0;
    for (int64_t i = 0; i < allocated; i++) {
        if (records[i].until && records[i].check != check_of(&records[i]))
            continue;
        if (!records[i].until && !records[i].check)
            continue; /* zeros */
        segment->used = (uint64_t)i + 1;
        if (records[i].until > segment->latest_s)
            segment->latest_s = records[i].until;
        *slot_of(segment, records[i].key) = tag_of(hash_of(records[i].key)) | (uint32_t)(i + 1);
    }
}

/* The file from its begin, also what it may come to have; -errno. */
int64_t sluice_map(int64_t file, int64_t size)
{
    void *found = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, (int)file, 0);
    return found == MAP_FAILED ? -errno : (int64_t)found;
}

int64_t sluice_unmap(void *begin, int64_t size)
{
    return munmap(begin, (size_t)size) ? -errno : 0;
}

/* Waits until these bytes are on the disk; 0 or -errno. */
int64_t sluice_sync(uint8_t *begin, int64_t from, int64_t to)
{
    from &= -sysconf(_SC_PAGESIZE);
    return msync(begin + from, (size_t)(to - from), MS_SYNC) ? -errno : 0;
}
