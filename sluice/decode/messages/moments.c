/* Which messages have a text that may be a date without a year, where a date is looked for; and which
 * lines have a number that may be none. What is not found here is proven to have none; the others are
 * judged exactly (text/yearless.py, text/cells.py).
 *
 * The input is not trusted: it need not be what its format says. Nothing is allocated or kept.
 */

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* A key is looked for so near to where the message before had it. */
#define NEAR 16
#define KEYS_MAX 64

enum verdict { CLEAR = 0, UNCLEAR = 1 };

struct keys {
    const uint8_t *text; /* each as JSON writes it, with its quotes */
    const int64_t *ends;
    int64_t count;
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

/* Of a string's text, up to its quote: it says a year, or is no date. */
static int is_clear(const uint8_t *at, const uint8_t *end)
{
    int count = digits(at, end);
    const uint8_t *next = at + count;
    if (!count)
        return is_foreign(at, end);
    if (next < end && *next == '\\')
        return 0; /* the next symbol may be a digit in disguise */
    switch (count) {
    case 4:
    case 6:
    case 8:
    case 14:
        return is_year(at);
    case 9:
    case 10:
    case 13:
    case 16:
    case 19:
        return 1;
    case 1:
    case 2: /* day, month, year */
        for (int part = 0; part < 2; part++) {
            if (next == end || (*next != '/' && *next != '-' && *next != '.'))
                return 0;
            at = next + 1;
            count = digits(at, end);
            next = at + count;
            if (part == 0 && count != 1 && count != 2)
                return 0;
        }
        return (count == 2 || (count == 4 && is_year(at))) && (next == end || *next != '\\');
    }
    return 0;
}

/* The quote that ends the string whose text begins here, or the end. */
static const uint8_t *string_end(const uint8_t *at, const uint8_t *end)
{
    while (at < end && *at != '"')
        at += *at == '\\' ? 2 : 1;
    return at < end ? at : end;
}

/* Of a value: of all strings in it. A string ends at its quote, which is no part of a year. */
static enum verdict value_verdict(const uint8_t *at, const uint8_t *end)
{
    int64_t depth = 0;
    at = behind_space(at, end);
    if (at < end && *at == '"')
        return is_clear(at + 1, end) ? CLEAR : UNCLEAR;
    for (; at < end; at++) {
        if (*at == '"') {
            if (!is_clear(at + 1, end))
                return UNCLEAR;
            at = string_end(at + 1, end);
        } else if (*at == '[' || *at == '{') {
            depth++;
        } else if (*at == ']' || *at == '}') {
            depth--;
        }
        if (depth <= 0)
            break;
    }
    return CLEAR;
}

/* Every key of the outermost object, whatever its order. */
static enum verdict walk_object(const uint8_t *at, const uint8_t *end, const struct keys *keys)
{
    int64_t depth = 0;
    for (; at < end; at++) {
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else if (*at == '"') {
            const uint8_t *close = string_end(at + 1, end);
            const uint8_t *colon = close < end ? behind_space(close + 1, end) : end;
            if (depth == 1 && colon < end && *colon == ':') {
                int64_t size = close + 1 - at, begin = 0;
                if (memchr(at, '\\', size))
                    return UNCLEAR;
                for (int64_t k = 0; k < keys->count; begin = keys->ends[k++])
                    if (keys->ends[k] - begin == size && !memcmp(keys->text + begin, at, size) &&
                        value_verdict(colon + 1, end) == UNCLEAR)
                        return UNCLEAR;
            }
            at = close;
        }
    }
    return CLEAR;
}

/* No bracket, no backslash, and no bar, which is next to them. */
static int is_flat(const uint8_t *at, const uint8_t *end)
{
    uint8_t strange = 0;
#ifdef __SSE2__
    const __m128i bit = _mm_set1_epi8(0x20), first = _mm_set1_epi8(0x7b), two = _mm_set1_epi8(2);
    if (end - at >= 16)
        for (;;) {
            __m128i from = _mm_or_si128(_mm_loadu_si128((const __m128i *)at), bit);
            from = _mm_sub_epi8(from, first);
            if (_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(from, two), from)))
                return 0;
            if (end - at == 16)
                return 1;
            at = end - at >= 32 ? at + 16 : end - 16;
        }
#endif
    for (; at < end; at++)
        strange |= (uint8_t)((*at | 0x20) - 0x7b) <= 2;
    return !strange;
}

/* Where these bytes stand, at a place or around it, else anywhere. memmem would prepare itself for a
 * long search each time. */
static const uint8_t *find(const uint8_t *begin, const uint8_t *end, int64_t place,
                           const uint8_t *key, int64_t size)
{
    const uint8_t *last = end - size, *at = begin;
    if (end - begin < size)
        return NULL;
#ifdef __SSE2__
    if (place > NEAR)
        at = begin + place - NEAR;
    if (end - at > 2 * NEAR) {
        const __m128i first = _mm_set1_epi8((char)key[0]), second = _mm_set1_epi8((char)key[1]);
        uint32_t both = 0;
        for (int i = 0; i < 2; i++) {
            __m128i one = _mm_loadu_si128((const __m128i *)(at + i * NEAR));
            __m128i next = _mm_loadu_si128((const __m128i *)(at + i * NEAR + 1));
            one = _mm_and_si128(_mm_cmpeq_epi8(one, first), _mm_cmpeq_epi8(next, second));
            both |= (uint32_t)_mm_movemask_epi8(one) << (i * NEAR);
        }
        for (; both; both &= both - 1) {
            const uint8_t *here = at + __builtin_ctz(both);
            if (here <= last && !memcmp(here, key, size))
                return here;
        }
    }
    at = begin;
#endif
    while (at <= last && (at = memchr(at, key[0], last + 1 - at)) != NULL) {
        if (!memcmp(at, key, size))
            return at;
        at++;
    }
    return NULL;
}

/* Keys of flat messages are where the message before had them, or nearly. */
static enum verdict object_verdict(const uint8_t *begin, const uint8_t *end,
                                   const struct keys *keys, int64_t *places)
{
    const uint8_t *flat = begin + 1;
    int64_t from = 0;
    for (int64_t k = 0; k < keys->count; from = keys->ends[k++]) {
        const uint8_t *key = keys->text + from;
        int64_t size = keys->ends[k] - from;
        const uint8_t *found = find(begin, end, places[k], key, size);
        if (!found) {
            if (memchr(begin, '\\', end - begin))
                return walk_object(begin, end, keys);
            continue;
        }
        if (found > flat) {
            if (!is_flat(flat, found))
                return walk_object(begin, end, keys);
            flat = found;
        }
        const uint8_t *colon = behind_space(found + size, end);
        if (colon == end || *colon != ':')
            return walk_object(begin, end, keys);
        places[k] = found - begin;
        if (value_verdict(colon + 1, end) == UNCLEAR)
            return UNCLEAR;
    }
    return CLEAR;
}

/* The values at these places of the outermost array, which ascend. */
static enum verdict array_verdict(const uint8_t *at, const uint8_t *end, const int64_t *places,
                                  int64_t count)
{
    int64_t depth = 0, value = 0;
    for (; count && at < end; at++) {
        if (*at == '"') {
            at = string_end(at + 1, end);
            continue;
        }
        if (*at == '{' || *at == '[')
            depth++;
        else if (*at == '}' || *at == ']')
            depth--;
        else if (*at == ',' && depth == 1)
            value++;
        else
            continue;
        if (depth == 1 && value == *places && (*at == ',' || *at == '[')) {
            if (value_verdict(at + 1, end) == UNCLEAR)
                return UNCLEAR;
            places++;
            count--;
        }
    }
    return CLEAR;
}

/* The end of a value of a line, and where its text begins; *next is behind its separator. */
static const uint8_t *line_value(const uint8_t **text, const uint8_t *end, uint8_t separator,
                                 int has_quotes, const uint8_t **next)
{
    const uint8_t *at = *text;
    if (has_quotes && at < end && *at == '"') {
        *text = ++at;
        while (at < end && (*at != '"' || (at + 1 < end && at[1] == '"')))
            at += *at == '"' ? 2 : 1;
        const uint8_t *close = at < end ? at : end;
        *next = close < end ? close + 1 : end;
        if (*next < end)
            (*next)++;
        return close;
    }
    at = memchr(at, separator, end - at);
    *next = at ? at + 1 : end;
    return at ? at : end;
}

/* What is looked for in a value of a line. */
enum look { DATES = 1, NUMBERS = 2, ALL = 4 };

/* Of what stands in no quotes, in brackets: a number that every reader takes for the same, or NULL. */
static int is_word_clear(const uint8_t *at, const uint8_t *end)
{
    int numerals = 0, points = 0, others = 0;
    if (end - at == 4 && (!memcmp(at, "NULL", 4) || !memcmp(at, "true", 4)))
        return 1;
    if (*at == '-')
        at++;
    if (at < end && *at == '.')
        return 0;
    for (; at < end; at++) {
        if (is_digit(*at))
            numerals++;
        else if (*at == '.')
            points++;
        else
            others++;
    }
    return numerals && !others && points < 2 && numerals <= 18 && end[-1] != '.';
}

static int is_word_end(uint8_t symbol)
{
    return is_space(symbol) || (symbol && strchr(",:[](){}'", symbol));
}

/* Of an array, a map or a tuple: no value is missing, and each is clear. Texts stand in single quotes. */
static int is_nest_clear(const uint8_t *at, const uint8_t *end, int64_t look)
{
    uint8_t before = 0;
    while (at < end) {
        uint8_t symbol = *at;
        if (is_space(symbol)) {
            at++;
            continue;
        }
        if (symbol == '\\')
            return 0;
        if (symbol == '\'') {
            if ((look & DATES) && !is_clear(at + 1, end))
                return 0;
            for (at++; at < end && *at != '\''; at++)
                if (*at == '\\')
                    return 0;
        } else if (is_word_end(symbol)) {
            int ends = symbol == ',' || symbol == ':' || symbol == ']' || symbol == '}' || symbol == ')';
            int opened = before == '[' || before == '{' || before == '(';
            if ((look & NUMBERS) && ends &&
                (before == ',' || before == ':' || (opened && (symbol == ',' || symbol == ':'))))
                return 0;
        } else {
            const uint8_t *word = at;
            while (at < end && !is_word_end(*at))
                at++;
            if ((look & NUMBERS) && !is_word_clear(word, at))
                return 0;
            before = 'w';
            continue;
        }
        before = symbol;
        at++;
    }
    return 1;
}

static int is_line_value_clear(const uint8_t *at, const uint8_t *end, int64_t look)
{
    if (look & ALL)
        return 0;
    if (at == end || (end - at == 2 && at[0] == '\\' && at[1] == 'N'))
        return 1; /* empty, or null, or refused */
    if (*at == '[' || *at == '{' || *at == '(')
        return is_nest_clear(at, end, look);
    if (*at == '\'')
        at++;
    return !(look & DATES) || is_clear(at, end);
}

/* Whether a value of a line may be a sign alone, or begin with two of them. */
static int has_odd_sign(const uint8_t *at, const uint8_t *end, uint8_t separator)
{
    uint8_t found = 0;
    int64_t size = end - at;
    for (int64_t i = 0; i < size - 1; i++) {
        uint8_t next = at[i + 1];
        found |= ((at[i] == '-') | (at[i] == '+')) & ((next == separator) | (next == '-') | (next == '+'));
    }
    return found || (size && (end[-1] == '-' || end[-1] == '+'));
}

/* The values at these places of a line, which ascend. */
static enum verdict line_verdict(const uint8_t *at, const uint8_t *end, const int64_t *places,
                                 int64_t count, uint8_t separator, int has_quotes)
{
    for (int64_t value = 0; count && at < end; value++) {
        const uint8_t *next, *close = line_value(&at, end, separator, has_quotes, &next);
        if (value == *places >> 3) {
            if (!is_line_value_clear(at, close, *places & 7))
                return UNCLEAR;
            places++;
            count--;
        }
        at = next;
    }
    return CLEAR;
}

/* Of messages with one byte between two of them. Writes a verdict for each; how many are unclear is
 * given back.
 *
 * kind: '{' for objects, '[' for arrays, else what separates the values of a line. names: the keys of
 * objects; numbers: where each of them ends in names, at most KEYS_MAX; or the places of values, of lines
 * times 8 plus what is looked for. signs: of lines, that odd ones are looked for everywhere. */
int64_t sluice_unclear_moments(const uint8_t *text, int64_t messages, const int64_t *ends,
                               int64_t kind, int64_t has_quotes, int64_t signs,
                               const uint8_t *names, const int64_t *numbers, int64_t count,
                               uint8_t *verdicts)
{
    struct keys keys = {names, numbers, count};
    int64_t places[KEYS_MAX] = {0}, unclear = 0;
    const uint8_t *at = text;
    for (int64_t i = 0; i < messages; i++) {
        const uint8_t *end = text + ends[i];
        if (kind == '{')
            verdicts[i] = object_verdict(at, end, &keys, places);
        else if (kind == '[')
            verdicts[i] = array_verdict(at, end, numbers, count);
        else if (signs && has_odd_sign(at, end, (uint8_t)kind))
            verdicts[i] = UNCLEAR;
        else
            verdicts[i] = line_verdict(at, end, numbers, count, (uint8_t)kind, (int)has_quotes);
        unclear += verdicts[i];
        at = end + 1;
    }
    return unclear;
}
