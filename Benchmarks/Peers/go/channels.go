package main

import (
	"sync"
	"sync/atomic"
)

func pingpong(n int) {
	there, back := make(chan int), make(chan int)
	go func() {
		for x := range there {
			back <- x
		}
		close(back)
	}()
	sum := 0
	for i := 0; i < n; i++ {
		there <- i
		sum += <-back
	}
	close(there)
	expect(sum, n*(n-1)/2, "sum of what came back")
}

// As many producers as consumers around one channel that holds `capacity` values.
func buffered(n, capacity, pairs int) {
	values := make(chan int, capacity)
	var producers, consumers sync.WaitGroup
	var sum int64
	for k := 0; k < pairs; k++ {
		producers.Add(1)
		consumers.Add(1)
		go func() {
			for i := 0; i < n/pairs; i++ {
				values <- i
			}
			producers.Done()
		}()
		go func() {
			mine := 0
			for x := range values {
				mine += x
			}
			atomic.AddInt64(&sum, int64(mine))
			consumers.Done()
		}()
	}
	producers.Wait()
	close(values)
	consumers.Wait()
	each := n / pairs
	expect(int(sum), pairs*(each*(each-1)/2), "sum of what was received")
}

func ring(nodes, laps int) {
	first := make(chan int)
	in := first
	for i := 0; i < nodes; i++ {
		out := make(chan int)
		go func(in, out chan int) {
			for x := range in {
				out <- x + 1
			}
			close(out)
		}(in, out)
		in = out
	}
	for lap := 0; lap < laps; lap++ {
		first <- 0
		expect(<-in, nodes, "hops of a lap")
	}
	close(first)
	<-in
}

// The generator and the filters are left where they wait, as in every sieve: stopping them would be measured, too.
func sieve(count int) int {
	numbers := make(chan int)
	go func(out chan<- int) {
		for i := 2; ; i++ {
			out <- i
		}
	}(numbers)
	prime := 0
	for i := 0; i < count; i++ {
		prime = <-numbers
		filtered := make(chan int)
		go func(in <-chan int, out chan<- int, prime int) {
			for {
				if x := <-in; x%prime != 0 {
					out <- x
				}
			}
		}(numbers, filtered, prime)
		numbers = filtered
	}
	return prime
}

func selectBetween(n int) {
	left, right := make(chan int), make(chan int)
	go func() {
		for i := 0; i < n/2; i++ {
			left <- 1
			right <- 2
		}
	}()
	sum := 0
	for i := 0; i < n/2*2; i++ {
		select {
		case x := <-left:
			sum += x
		case x := <-right:
			sum += x
		}
	}
	expect(sum, n/2*3, "sum of what was selected")
}
