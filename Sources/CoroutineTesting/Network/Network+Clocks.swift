import Coroutine

extension World.Network {
  /// Lets the clock of a host run faster or slower than the world's time; the rate is 1 at first.
  ///
  /// At a rate of 1.25, a second of the host lasts 0.8 seconds of the world. The clock measures every duration that the
  /// host's coroutines name: delays, timeouts, rate limits, timers of actors, periods of restarts. So hosts
  /// disagree about how long something takes, and a lease may end before its holder expects that. A timer that runs
  /// already keeps its end. The clock never jumps, and runs on while the host is down.
  ///
  /// A handler of a promise is on the host of the code that has attached it. The world measures all the rest:
  /// latencies, ``World/now``, ``World/advance(by:)``, `timeLimit`. An object that stores times, such as a
  /// `RateLimiter` or a `Ticker`, is for one host: of hosts with different rates that share one, none gets the rate
  /// that it asks for.
  ///
  /// - Parameters:
  ///   - rate: The rate, from 0.001 to 1000, which is rounded to millionths. Another rate traps.
  ///   - host: The name of a host, which may be added later. The host "body" has the world's clock; to give it another
  ///     rate traps.
  public func setClockRate(_ rate: Double, of host: String) {
    if host == machines[0].name { misuse("the host \"body\" has the world's clock") }
    if !(0.001...1000).contains(rate) { misuse("a clock runs at a rate from 0.001 to 1000, not \(rate)") }
    setClock(of: host, millionths: UInt64((rate * 1e6).rounded()))
  }
}
