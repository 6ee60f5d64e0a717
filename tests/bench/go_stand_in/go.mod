module handoff/bench/go_stand_in

go 1.19
