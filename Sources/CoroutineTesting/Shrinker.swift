import Glibc

/// Makes a failing run simpler: fewest preemptions, then fewest faults, then least virtual time.
///
/// 1. Delta debugging (Zeller and Hildebrandt, 2002). It sets choices to 0, the order without a strategy, and keeps the
///    change if the run still fails with an error of the same type. It tries all choices at once, then halves, then
///    quarters, and so on.
/// 2. The result is minimal, but another run may have fewer preemptions. So it searches the schedules with few
///    preemptions for a simpler failing run.
///
/// It stops after five seconds of the thread's processor time, and twenty of the clock: a test that fails in every
/// order has no fewest preemptions to find, only less time, and its runs may be long. So where that limit is reached,
/// the run that is shown depends on the machine; it fails, and its token repeats it, all the same.
struct Shrinker {
  private let explorer: Explorer
  private let error: any Error
  private static var mostRuns: Int { 2_000 }
  private let end = (work: Self.work + .seconds(5), time: ContinuousClock.now + .seconds(20))

  init(_ explorer: Explorer, like error: any Error) {
    self.explorer = explorer
    self.error = error
  }

  private func fails(_ run: Run) -> Bool { run.fails(like: error) }

  // By processor time first: how often the machine runs something else must not decide which run is shown.
  private var isOver: Bool { Self.work >= end.work || ContinuousClock.now >= end.time }

  /// The processor time of the calling thread.
  private static var work: Duration {
    var time = timespec()
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
    return .seconds(time.tv_sec) + .nanoseconds(time.tv_nsec)
  }

  func shrink(_ run: Run) -> Run {
    var best = run
    var runs = 0
    var size = max(1, positions(best).count)
    while size >= 1, runs < Self.mostRuns, !isOver {
      var start = 0
      var isSmaller = false
      // From the end, because later choices depend on earlier ones.
      while case let differing = positions(best), start < differing.count, runs < Self.mostRuns, !isOver {
        let upper = differing.count - start
        let lower = max(0, upper - size)
        var choices = best.choices
        for position in differing[lower..<upper] { choices[position].chosen = 0 }
        let tried = explorer.run(ReplayChooser(choices), seed: best.seed)
        runs += 1
        if fails(tried), tried.isSimpler(than: best) {
          best = tried
          isSmaller = true
        } else {
          start += size
        }
      }
      if size == 1, !isSmaller { break }
      size = max(1, size / 2)
    }
    return leastPreemptions(best)
  }

  private func positions(_ run: Run) -> [Int] { run.choices.indices.filter { run.choices[$0].chosen > 0 } }

  /// The number of a world's steps that the search may take: runs may be long.
  private static var mostSteps: Int { 500_000 }

  /// Searches the schedules with no preemption, one, two, and three.
  ///
  /// Those with as many as `run` has are searched only if a fault or time can be saved.
  private func leastPreemptions(_ run: Run) -> Run {
    let most = run.faults > 0 || run.time > .zero ? run.switches : run.switches - 1
    guard most >= 0 else { return run }
    var steps = 0
    for bound in 0...min(3, most) {
      let search = ExhaustiveSearch(preemptions: bound)
      var best = run
      for _ in 0..<Self.mostRuns / 2 {
        let tried = explorer.run(search, seed: run.seed)
        steps += tried.length
        if fails(tried), tried.isSimpler(than: best) { best = tried }
        if search.firstDifference != nil || steps > Self.mostSteps || isOver || !search.advance() { break }
      }
      if best.isSimpler(than: run) || steps > Self.mostSteps || isOver { return best }
    }
    return run
  }
}
