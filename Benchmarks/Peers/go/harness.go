package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The options that all programs of these benchmarks share.
type options struct {
	quick  bool
	filter string
	only   string
	rounds int
}

func parse(arguments []string) options {
	o := options{rounds: 5}
	for i := 0; i < len(arguments); i++ {
		value := func() string {
			i++
			if i == len(arguments) {
				usage(arguments[i-1] + " needs a value")
			}
			return arguments[i]
		}
		switch arguments[i] {
		case "--quick":
			o.quick, o.rounds = true, 1
		case "--filter":
			o.filter = value()
		case "--only":
			o.only = value()
		case "--rounds":
			rounds, err := strconv.Atoi(value())
			if err != nil || rounds < 1 {
				usage("--rounds needs a number from 1 on")
			}
			o.rounds = rounds
		default:
			usage("'" + arguments[i] + "' is no option")
		}
	}
	return o
}

func usage(problem string) {
	fmt.Fprintln(os.Stderr, "error: "+problem+". Use: [--quick] [--filter SUBSTRING | --only ROW] [--rounds N]")
	os.Exit(2)
}

func (o options) wants(row string) bool {
	if o.only != "" {
		return o.only == row
	}
	return strings.Contains(row, o.filter)
}

// What a row is measured with: nanoseconds since some fixed moment.
type clock func() int64

var began = time.Now()

func wall() int64 { return time.Since(began).Nanoseconds() }

// The time that all threads have spent computing.
func processor() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// A row: `body` does exactly as many operations as it is told, and checks that it did.
func (o options) row(name string, operations int, now clock, body func(int)) {
	if !o.wants(name) {
		return
	}
	if o.quick && operations >= 40 {
		operations /= 40
	}
	var taken []float64
	for r := 0; r < o.rounds; r++ {
		start := now()
		body(operations)
		taken = append(taken, float64(now()-start)/float64(operations))
	}
	print(name, taken)
}

func print(name string, values []float64) {
	sort.Float64s(values)
	fmt.Printf("go/%s\t%.1f\t%.1f\n", name, values[0], values[len(values)/2])
}

// Ends the program unless a workload's result is what its operations must have produced.
func expect(found, wanted int, what string) {
	if found != wanted {
		fmt.Fprintf(os.Stderr, "error: wrong result: %s: expected %d, found %d\n", what, wanted, found)
		os.Exit(1)
	}
}
