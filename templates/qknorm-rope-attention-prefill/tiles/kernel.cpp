#include "attention_amx.h"

extern "C" void turn(const turn_args& a, int rank, int size) { turn_chunk(a, eps, offset, rank, size); }

extern "C" void attend(const attend_args& a, int rank, int size) { attend_chunk<TileWay>(a, rank, size); }
