/// Makes a failing run simpler: fewest switches, then fewest faults, then least virtual time.
///
/// It sets choices to 0, which is the order without a strategy, and keeps what still fails with an error of the same
/// type: first the tail, then halves, quarters and so on (delta debugging; Zeller and Hildebrandt, 2002). Then it
/// searches for a run with fewer preemptions, because what is minimal in this sense need not be the least.
struct Shrinker {
  private let explorer: Explorer
  private let kind: any Error.Type
  private static var mostRuns: Int { 2_000 }

  init(_ explorer: Explorer, like error: any Error) {
    self.explorer = explorer
    kind = type(of: error)
  }

  private func fails(_ run: Run) -> Bool { run.failure.map { type(of: $0) == kind } ?? false }

  func shrink(_ run: Run) -> Run {
    var best = run
    var runs = 0
    var size = max(1, positions(best).count)
    while size >= 1, runs < Self.mostRuns {
      var start = 0
      var isSmaller = false
      // From the end: later choices depend on earlier ones, not the other way round.
      while case let differing = positions(best), start < differing.count, runs < Self.mostRuns {
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
    return best.switches > 1 ? leastPreemptions(best) : best
  }

  private func positions(_ run: Run) -> [Int] { run.choices.indices.filter { run.choices[$0].chosen > 0 } }

  /// Searches the schedules with no preemption, one, and two.
  private func leastPreemptions(_ run: Run) -> Run {
    for bound in 0...2 {
      let search = ExhaustiveSearch(preemptions: bound)
      var best = run
      for _ in 0..<Self.mostRuns / 2 {
        let tried = explorer.run(search, seed: run.seed)
        if fails(tried), tried.isSimpler(than: best) { best = tried }
        if search.firstDifference != nil || !search.advance() { break }
      }
      if best.isSimpler(than: run) { return best }
    }
    return run
  }
}
