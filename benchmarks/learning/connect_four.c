/* Who wins a position of Connect Four when both play as well as can be: 1 who moves, 0 nobody, -1 the other.

A board is 7 columns of 7 bits, the lowest bit the bottom; the seventh of each column stays empty. Alpha-beta with a table
of positions; moves that let the other win at once are never tried (after P. Pons, http://blog.gamesolver.org). */

#include <stdint.h>
#include <string.h>

typedef uint64_t Cells;

enum { COLUMNS = 7, STRIDE = 7, CELLS = 42, ENTRIES = 1 << 23 };

static const Cells BOTTOM = 0x40810204081, BOARD = 0x40810204081 * 63;
static Cells known[ENTRIES]; /* a position, and in the lowest 4 bits what is known of its value plus 1: least, most */

/* Empty cells that would give someone four in a line. */
static Cells winning(Cells own, Cells taken) {
    Cells found = (own << 1) & (own << 2) & (own << 3);
    for (int step = STRIDE - 1; step <= STRIDE + 1; step++) {
        Cells up = (own << step) & (own << 2 * step), down = (own >> step) & (own >> 2 * step);
        found |= (up & (own << 3 * step)) | (up & (own >> step)) | (down & (own << step)) | (down & (own >> 3 * step));
    }
    return found & (BOARD ^ taken);
}

/* Of a position in which who moves has no winning move. */
static int value(Cells own, Cells taken, int low, int high) {
    Cells threats = winning(own ^ taken, taken), moves = (taken + BOTTOM) & BOARD, forced = moves & threats;
    if (forced & (forced - 1)) return -1;
    if (forced) moves = forced;
    moves &= ~(threats >> 1);
    int stones = __builtin_popcountll(taken);
    if (!moves && stones < CELLS) return -1;
    if (stones >= CELLS - 2) return 0;

    Cells key = own + taken, *entry = &known[(key * 0x9E3779B97F4A7C15) >> 41];
    int least = -1, most = 1;
    if (*entry >> 4 == key) {
        least = (int)(*entry >> 2 & 3) - 1;
        most = (int)(*entry & 3) - 1;
        if (least > low) low = least;
        if (most < high) high = most;
        if (low >= high) return least >= high ? least : most;
    }

    Cells order[COLUMNS];
    int worth[COLUMNS], count = 0;
    static const int CENTRE_FIRST[COLUMNS] = {3, 2, 4, 1, 5, 0, 6};
    for (int i = 0; i < COLUMNS; i++) {
        Cells move = moves & ((Cells)63 << (CENTRE_FIRST[i] * STRIDE));
        if (!move) continue;
        int points = __builtin_popcountll(winning(own | move, taken)), place = count++;
        for (; place && worth[place - 1] < points; place--) order[place] = order[place - 1], worth[place] = worth[place - 1];
        order[place] = move, worth[place] = points;
    }
    int best = -1, start = low;
    for (int i = 0; i < count && low < high; i++) {
        int found = -value(own ^ taken, taken | order[i], -high, -low);
        if (found > best) best = found;
        if (best > low) low = best;
    }
    if (best > start) least = best; /* else it is only known to be no more */
    if (best < high) most = best;
    *entry = key << 4 | (Cells)(least + 1) << 2 | (Cells)(most + 1);
    return best;
}

/* The values of the seven moves for who makes them; -2 where a column is full. */
void values(Cells own, Cells taken, signed char *found) {
    for (int column = 0; column < COLUMNS; column++) {
        Cells move = (taken + BOTTOM) & BOARD & ((Cells)63 << (column * STRIDE));
        if (!move) found[column] = -2;
        else if (move & winning(own, taken)) found[column] = 1;
        else if (winning(own ^ taken, taken | move) & ((taken | move) + BOTTOM)) found[column] = -1;
        else found[column] = (signed char)-value(own ^ taken, taken | move, -1, 1);
    }
}
