/* Which objects have a value that the engine may take for another one: a date without a year or of two
 * readings, a fraction of more digits than are kept, an empty text for a number; and which may have no
 * field of the table. What is not found here is proven to have none; the others are judged exactly
 * (text/misread.py). And which may have a value that the engine refuses although its column takes it, or a
 * name that it does not know again (text/rewriting.py).
 *
 * The input is not trusted: it need not be what its format says. Nothing is allocated or kept.
 */

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* In a scale: the value is a time of day. */
#define TIME_OF_DAY 64

enum verdict { CLEAR = 0, UNCLEAR = 1 };

struct keys {
    const uint8_t *text; /* each as JSON writes it, with its quotes */
    const int64_t *ends;
    const int64_t *scales; /* how many digits of a second each of the first ones keeps; or its spellings */
    int64_t count, moments;
};

static int is_space(uint8_t symbol)
{
    return symbol == ' ' || symbol == '\t' || symbol == '\r' || symbol == '\n';
}

static int is_digit(uint8_t symbol)
{
    return (uint8_t)(symbol - '0') < 10;
}

static const uint8_t *behind_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && is_space(*at))
        at++;
    return at;
}

static int digits(const uint8_t *at, const uint8_t *end)
{
    int count = 0;
    if (end - at > 4 && at[4] == '-' && is_digit(at[0]) && is_digit(at[1]) && is_digit(at[2]) &&
        is_digit(at[3]))
        return 4;
    while (at + count < end && count < 20 && is_digit(at[count]))
        count++;
    return count;
}

static int is_year(const uint8_t *at)
{
    return memcmp(at, "0000", 4) != 0;
}

/* The number that two digits say; more than any if they are none. */
static unsigned two(const uint8_t *at)
{
    return is_digit(at[0]) && is_digit(at[1]) ? (at[0] - '0') * 10 + (at[1] - '0') : 100;
}

/* A month, and a day that some month has; the engine refuses those that this one has not. */
static int is_day(const uint8_t *month, const uint8_t *day)
{
    return two(month) - 1 < 12 && two(day) - 1 < 31;
}

static int is_text_end(const uint8_t *at, const uint8_t *end)
{
    return at == end || *at == '"' || *at == '\'';
}

/* Behind the seconds, or minutes: a fraction of no more digits than are kept, a zone, and the end. */
static int is_tail_clear(const uint8_t *at, const uint8_t *end, int64_t scale)
{
    if (at < end && *at == '.') {
        const uint8_t *first = ++at;
        while (at < end && is_digit(*at))
            at++;
        if (at == first || at - first > scale)
            return 0;
    }
    if (at < end && *at == 'Z')
        at++;
    else if (end - at >= 5 && (*at == '+' || *at == '-') && two(at + 1) < 15) {
        at += 3;
        at += *at == ':';
        if (end - at < 2 || two(at) > 59)
            return 0;
        at += 2;
    }
    return is_text_end(at, end);
}

/* Of a text that begins as 2026-01-02 does. */
static int is_usual_clear(const uint8_t *at, const uint8_t *end, int64_t scale)
{
    if (end - at < 10 || at[7] != '-' || !is_day(at + 5, at + 8) || !is_year(at))
        return 0;
    if (is_text_end(at + 10, end))
        return 1;
    if (end - at < 16 || (at[10] != ' ' && at[10] != 'T') || at[13] != ':' || two(at + 11) > 23 ||
        two(at + 14) > 59)
        return 0;
    if (end - at < 19 || at[16] != ':')
        return is_tail_clear(at + 16, end, scale);
    return two(at + 17) < 60 && is_tail_clear(at + 19, end, scale);
}

/* Whether a word begins here with which no date does. */
static int is_foreign(const uint8_t *at, const uint8_t *end)
{
    static const char known[] = "janfebmaraprmayjunjulaugsepoctnovdecmontuewedthufrisatsunutcgmtmskmsd";
    uint8_t word[3] = {0, 0, 0};
    int size = 0;
    while (size < 3 && at + size < end && (uint8_t)((at[size] | 0x20) - 'a') < 26) {
        word[size] = at[size] | 0x20;
        size++;
    }
    if (!size || word[0] == 'z')
        return 0;
    if (size < 3)
        return !(size == 2 && word[1] == 'm') && (at + size == end || at[size] != '\\');
    for (const char *one = known; *one; one += 3)
        if (!memcmp(one, word, 3))
            return 0;
    return 1;
}

/* More digits than a number of a time of day has, before those of a second that are kept. */
#define TIME_DIGITS_MAX 7

/* Of a time of day: it is no number of many digits, and has no more digits of a second than are kept. */
static int is_time_clear(const uint8_t *at, const uint8_t *end, int64_t scale)
{
    at += at < end && (*at == '+' || *at == '-');
    if (digits(at, end) > TIME_DIGITS_MAX)
        return 0;
    while (at < end && *at != '.' && !is_text_end(at, end))
        at++;
    const uint8_t *point = at;
    if (at == end || *at != '.')
        return 1;
    for (at++; at < end && is_digit(*at); at++)
        ;
    return at - point - 1 <= scale;
}

/* Of a string's text, up to its quote: it says one date and time that there is, in no more digits than
 * are kept, or is none. */
static int is_clear(const uint8_t *at, const uint8_t *end, int64_t scale)
{
    if (scale & TIME_OF_DAY)
        return is_time_clear(at, end, scale & ~TIME_OF_DAY);
    int count = digits(at, end);
    const uint8_t *next = at + count;
    switch (count) {
    case 0:
        return is_foreign(at, end);
    case 4:
        return next < end && *next == '-' ? is_usual_clear(at, end, scale)
                                          : is_year(at) && is_text_end(next, end);
    case 8:
        return is_year(at) && is_day(at + 4, at + 6) && is_text_end(next, end);
    case 14:
        return is_year(at) && is_day(at + 4, at + 6) && two(at + 8) < 24 && two(at + 10) < 60 &&
               two(at + 12) < 60 && is_tail_clear(next, end, scale);
    case 9:
    case 10:
        return is_tail_clear(next, end, scale);
    case 13:
    case 16:
    case 19:
        return count - 10 <= scale && is_text_end(next, end);
    }
    return 0;
}

/* The quote that ends the string whose text begins here, or the end. */
static const uint8_t *string_end(const uint8_t *at, const uint8_t *end)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
    while (end - at >= 16) {
        __m128i text = _mm_loadu_si128((const __m128i *)at);
        __m128i found = _mm_or_si128(_mm_cmpeq_epi8(text, quote), _mm_cmpeq_epi8(text, backslash));
        int places = _mm_movemask_epi8(found);
        at += places ? __builtin_ctz(places) : 16;
        if (places && *at == '"')
            return at;
        at += places ? 2 : 0;
    }
#endif
    while (at < end && *at != '"')
        at += *at == '\\' ? 2 : 1;
    return at < end ? at : end;
}

/* Of a number in no quotes, from its point on. */
static const uint8_t *fraction_end(const uint8_t *at, const uint8_t *end, int64_t scale, int *clear)
{
    const uint8_t *point = at++;
    while (at < end && is_digit(*at))
        at++;
    *clear &= at - point - 1 <= scale && (at == end || (*at | 0x20) != 'e');
    return at;
}

/* Of a value: of all strings and numbers in it. A string ends at its quote, which is no part of a year. */
static enum verdict value_verdict(const uint8_t *at, const uint8_t *end, int64_t scale)
{
    int64_t depth = 0;
    int clear = 1;
    at = behind_space(at, end);
    if (at < end && *at == '"')
        return is_clear(at + 1, end, scale) ? CLEAR : UNCLEAR;
    for (; at < end; at++) {
        if (*at == '"') {
            if (!is_clear(at + 1, end, scale))
                return UNCLEAR;
            at = string_end(at + 1, end);
        } else if ((scale & TIME_OF_DAY) && is_digit(*at)) {
            int count = digits(at, end);
            at += count - 1;
            if (count > TIME_DIGITS_MAX || (end - at > 1 && (at[1] | 0x20) == 'e'))
                return UNCLEAR;
        } else if (*at == '.') {
            at = fraction_end(at, end, scale & ~TIME_OF_DAY, &clear) - 1;
            if (!clear)
                return UNCLEAR;
        } else if (*at == '[' || *at == '{') {
            depth++;
        } else if (*at == ']' || *at == '}') {
            depth--;
        } else if (depth <= 0 && *at == ',') {
            break;
        }
        if (depth <= 0 && (*at == ']' || *at == '}' || *at == '"'))
            break;
    }
    return CLEAR;
}

/* Where a key in quotes is among those from one place to another; -1: nowhere. Looked for at a likely place
 * first, and behind it. */
static int64_t place_of(const uint8_t *key, int64_t size, const struct keys *keys, int64_t from,
                        int64_t to, int64_t likely)
{
    int64_t place = likely >= from && likely < to ? likely : from;
    for (int64_t k = from; k < to; k++, place = place + 1 < to ? place + 1 : from) {
        int64_t begin = place ? keys->ends[place - 1] : 0;
        if (keys->ends[place] - begin == size && !memcmp(keys->text + begin, key, size))
            return place;
    }
    return -1;
}

/* Of the keys of the outermost object. *likely: the key that the next one is in most messages. */
static enum verdict object_verdict(const uint8_t *at, const uint8_t *end, const struct keys *keys,
                                   int is_filled, int64_t *likely)
{
    int64_t depth = 0;
    for (; at < end && !(is_filled && !keys->moments); at++) {
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else if (*at == '"') {
            const uint8_t *close = string_end(at + 1, end);
            const uint8_t *colon = depth == 1 && close < end ? behind_space(close + 1, end) : end;
            if (colon < end && *colon == ':') {
                int64_t size = close + 1 - at;
                int64_t place = place_of(at, size, keys, 0, keys->moments, *likely);
                if (place >= 0) {
                    *likely = place + 1 < keys->moments ? place + 1 : 0;
                    if (value_verdict(colon + 1, end, keys->scales[place]) == UNCLEAR)
                        return UNCLEAR;
                } else if (memchr(at, '\\', size)) {
                    return UNCLEAR;
                }
                is_filled |= place >= 0 ||
                             place_of(at, size, keys, keys->moments, keys->count, keys->moments) >= 0;
            }
            at = close;
        }
    }
    return is_filled ? CLEAR : UNCLEAR;
}

/* The next two quotes in a row, or the end. */
static const uint8_t *next_empty(const uint8_t *at, const uint8_t *end)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"');
    for (; end - at > 16; at += 16) {
        __m128i one = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)at), quote);
        __m128i next = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(at + 1)), quote);
        int both = _mm_movemask_epi8(_mm_and_si128(one, next));
        if (both)
            return at + __builtin_ctz(both);
    }
#endif
    for (; end - at > 1; at++)
        if (at[0] == '"' && at[1] == '"')
            return at;
    return end;
}

/* What else an empty text is unclear as: an item of an array, a value of a map, a key of one. */
enum within { ITEMS = 1, VALUES = 2, MAP_KEYS = 4 };

/* Whether one of the keys, or what else is looked for, may have an empty text as its value. */
static enum verdict empties_verdict(const uint8_t *begin, const uint8_t *end, const struct keys *keys,
                                    int64_t within)
{
    const uint8_t *at = begin;
    while ((at = next_empty(at, end)) < end) {
        const uint8_t *before = at, *behind = behind_space(at + 2, end);
        at += 2;
        while (before > begin && is_space(before[-1]))
            before--;
        if (before == begin || before[-1] == '\\')
            continue; /* the end of a text whose last symbol is a quote */
        if (behind < end && *behind == ':') {
            if (within & MAP_KEYS)
                return UNCLEAR;
            continue;
        }
        if (before[-1] != ':') {
            if (within & ITEMS)
                return UNCLEAR;
            continue;
        }
        if (within & VALUES)
            return UNCLEAR;
        const uint8_t *close = before - 1;
        while (close > begin && is_space(close[-1]))
            close--;
        const uint8_t *open = close - 1;
        if (open <= begin || *open != '"')
            return UNCLEAR;
        while (open > begin && open[-1] != '"')
            open--;
        if (open == begin || memchr(open, '\\', close - open) || (open > begin + 1 && open[-2] == '\\') ||
            place_of(open - 1, close - open + 1, keys, 0, keys->count, 0) >= 0)
            return UNCLEAR;
    }
    return CLEAR;
}

/* Of messages with one byte between two of them. Writes a verdict for each; how many are unclear is
 * given back.
 *
 * names: the keys of objects; name_ends: where each of them ends in names. moments: how many of them, the
 * first ones, hold dates; scales: of each of these, how many digits of a second are kept. is_filled: whether
 * an object may have none of the keys. empties: the keys, if any, whose text must not be empty, which the
 * engine takes for 0; within: what else is looked for. */
int64_t sluice_unclear(const uint8_t *text, int64_t messages, const int64_t *ends, const uint8_t *names,
                       const int64_t *name_ends, int64_t count, const int64_t *scales, int64_t moments,
                       int64_t is_filled, const uint8_t *empty_names, const int64_t *empty_ends,
                       int64_t empties, int64_t within, uint8_t *verdicts)
{
    struct keys keys = {names, name_ends, scales, count, moments};
    struct keys empty = {empty_names, empty_ends, 0, empties, 0};
    int64_t likely = 0, unclear = 0;
    const uint8_t *at = text;
    for (int64_t i = 0; i < messages; i++) {
        const uint8_t *end = text + ends[i];
        verdicts[i] = object_verdict(at, end, &keys, (int)is_filled, &likely);
        if (empties && verdicts[i] == CLEAR)
            verdicts[i] = empties_verdict(at, end, &empty, within);
        unclear += verdicts[i];
        at = end + 1;
    }
    return unclear;
}

/* What a message may have: an integer that is written with a point or an exponent, a boolean in quotes, a
 * text that begins with a brace, NaN or Infinity in no quotes. */
enum spelling { NUMBERS = 1, BOOLEANS = 2, DOCUMENTS = 4, CONSTANTS = 8 };

/* Of a number that begins here: where it ends, and whether its point or exponent leaves it an integer, as
 * far as this is seen without counting digits. */
static const uint8_t *number_end(const uint8_t *at, const uint8_t *end, int64_t *found)
{
    int is_whole = 1;
    while (at < end && is_digit(*at))
        at++;
    int has_more = at < end && (*at == '.' || (*at | 0x20) == 'e');
    if (at < end && *at == '.')
        for (at++; at < end && is_digit(*at); at++)
            is_whole &= *at == '0';
    if (at < end && (*at | 0x20) == 'e') {
        is_whole = 1;
        at++;
    }
    if (has_more && is_whole)
        *found |= NUMBERS;
    return at;
}

/* Of the string whose text begins here. */
static int64_t spellings_of_text(const uint8_t *at, const uint8_t *end)
{
    int64_t found = at < end && *at == '{' ? DOCUMENTS : 0;
    if (end - at > 5 && (!memcmp(at, "true\"", 5) || !memcmp(at, "false\"", 6)))
        found |= BOOLEANS;
    return found;
}

/* Whether a field of the outermost object has one of its own spellings; others: those of fields that are not
 * among the keys. *likely: the key that the next one is in most messages. */
static int has_spelling(const uint8_t *at, const uint8_t *end, const struct keys *keys, int64_t others,
                     int64_t *likely)
{
    int64_t depth = 0, wanted = 0, found = 0;
    for (; at < end && !(found & wanted); at++) {
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else if (*at == '"') {
            const uint8_t *close = string_end(at + 1, end);
            const uint8_t *colon = depth == 1 && close < end ? behind_space(close + 1, end) : end;
            if (colon < end && *colon == ':') {
                int64_t place = place_of(at, close + 1 - at, keys, 0, keys->count, *likely);
                *likely = place + 1 < keys->count ? place + 1 : 0;
                wanted = place >= 0 ? keys->scales[place] : others;
                wanted = memchr(at, '\\', close - at) ? ~(int64_t)0 : wanted;
                found = 0;
            } else {
                found |= spellings_of_text(at + 1, end);
            }
            at = close;
        } else if (is_digit(*at)) {
            at = number_end(at, end, &found) - 1;
        } else {
            found |= *at == 'N' || *at == 'I' ? CONSTANTS : 0;
        }
    }
    return (found & wanted) != 0;
}

/* Of messages with one byte between two of them: which may have a field with one of its spellings. How many do
 * is given back. names, name_ends: as above; spellings: of each key. others: of fields that are not among
 * them. */
int64_t sluice_spellings(const uint8_t *text, int64_t messages, const int64_t *ends, const uint8_t *names,
                         const int64_t *name_ends, int64_t count, const int64_t *spellings, int64_t others,
                         uint8_t *verdicts)
{
    struct keys keys = {names, name_ends, spellings, count, 0};
    int64_t likely = 0, sum = 0;
    const uint8_t *at = text;
    for (int64_t i = 0; i < messages; i++) {
        verdicts[i] = has_spelling(at, text + ends[i], &keys, others, &likely);
        sum += verdicts[i];
        at = text + ends[i] + 1;
    }
    return sum;
}

/* Whether a name inside of a value is written with a backslash. */
static int has_escaped_name(const uint8_t *at, const uint8_t *end)
{
    int64_t depth = 0;
    if (!memchr(at, '\\', end - at))
        return 0;
    for (; at < end; at++) {
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else if (*at == '"') {
            const uint8_t *close = string_end(at + 1, end);
            if (depth > 1 && close < end && memchr(at, '\\', close - at)) {
                const uint8_t *colon = behind_space(close + 1, end);
                if (colon < end && *colon == ':')
                    return 1;
            }
            at = close;
        }
    }
    return 0;
}

/* Of messages with one byte between two of them: which have such a name. How many do is given back. */
int64_t sluice_escaped_names(const uint8_t *text, int64_t messages, const int64_t *ends, uint8_t *verdicts)
{
    int64_t sum = 0;
    const uint8_t *at = text;
    for (int64_t i = 0; i < messages; i++) {
        verdicts[i] = has_escaped_name(at, text + ends[i]);
        sum += verdicts[i];
        at = text + ends[i] + 1;
    }
    return sum;
}
