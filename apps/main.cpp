// The program `gossamer`.

#include "apps/program/program.hpp"

int main(int argc, char** argv) { return gossamer::run_program(argc, argv); }
