extension CoroutineRuntime {
  /// ``metrics`` in the text format of Prometheus, version 0.0.4, for an answer to `GET /metrics`.
  ///
  /// The names begin with `coroutine_`. Counters end in `_total`, and durations are in seconds. A histogram has the
  /// durations that were measured (``Metrics``); so has its `_sum`. The queues are those of ``queues(most:)``; those
  /// with one kind, name and place are one sample.
  ///
  /// Never suspends; any thread, even while all workers and queues are blocked.
  public static var metricsText: String { PrometheusText.of(metrics, queues()) }
}

/// Writes the text format of Prometheus.
enum PrometheusText {
  static func of(_ metrics: CoroutineRuntime.Metrics, _ queues: [CoroutineRuntime.HeldQueue] = []) -> String {
    var text = ""
    func family(_ name: String, _ type: String, _ help: String) {
      text += "# HELP \(name) \(help)\n# TYPE \(name) \(type)\n"
    }
    func gauge(_ name: String, _ help: String, _ value: Int) {
      family(name, "gauge", help)
      text += "\(name) \(value)\n"
    }
    func counter(_ name: String, _ help: String, _ value: UInt64) {
      family(name, "counter", help)
      text += "\(name) \(value)\n"
    }
    gauge("coroutine_live", "Coroutines that have been launched and have not ended.", metrics.live)
    gauge("coroutine_ready", "Coroutines that could run.", metrics.ready)
    gauge("coroutine_running", "Coroutines that run on a thread.", metrics.running)
    family("coroutine_waiting", "gauge", "Coroutines that wait, by the kind of the wait.")
    for (kind, count) in metrics.waiting.sorted(by: { $0.key < $1.key }) {
      text += "coroutine_waiting{kind=\"\(escaped(kind))\"} \(count)\n"
    }
    counter("coroutine_launched_total", "Coroutines that have been launched.", metrics.launched)
    counter("coroutine_ended_total", "Coroutines that have ended.", metrics.ended)
    counter("coroutine_failed_total", "Coroutines that have ended with an error.", metrics.failed)
    counter("coroutine_cancelled_total", "Coroutines that have ended with their cancellation.", metrics.cancelled)
    counter("coroutine_switches_total", "Resumptions and starts of coroutines.", metrics.switches)
    counter("coroutine_steals_total", "Coroutines that a worker has taken from another worker.", metrics.steals)
    counter("coroutine_stalls_total", "Coroutines and Tasks that have kept a worker for too long.", metrics.stalls)
    counter("coroutine_spare_workers_total", "Spare workers that were made for stalled ones.", metrics.spareWorkers)
    counter(
      "coroutine_spare_shortages_total",
      "Times at which all spare workers were taken and one more was needed.",
      metrics.spareShortages
    )
    counter("coroutine_actor_restarts_total", "Restarts of actors by their supervisors.", metrics.restarts)
    family("coroutine_timeouts_total", "counter", "Deadlines that have passed, by the place of the call.")
    for (site, count) in metrics.timeouts.sorted(by: { $0.key < $1.key }) {
      text += "coroutine_timeouts_total{site=\"\(escaped(site))\"} \(count)\n"
    }
    counter("coroutine_task_parts_total", "Parts of Tasks that workers have run.", metrics.taskParts)
    gauge("coroutine_task_parts_ready", "Parts of Tasks that wait for a worker.", metrics.taskPartsReady)
    func histogram(_ name: String, _ help: String, _ value: CoroutineRuntime.Metrics.Histogram) {
      family(name, "histogram", help)
      var count: UInt64 = 0
      for (bound, one) in zip(value.bounds, value.counts) {
        count &+= one
        text += "\(name)_bucket{le=\"\(seconds(bound))\"} \(count)\n"
      }
      count &+= value.counts.dropFirst(value.bounds.count).reduce(0, &+)
      text += "\(name)_bucket{le=\"+Inf\"} \(count)\n\(name)_sum \(seconds(value.sum))\n\(name)_count \(count)\n"
    }
    histogram(
      "coroutine_wake_to_run_seconds",
      "Time for which ready coroutines wait for their worker or queue; samples.",
      metrics.wakeToRun
    )
    histogram(
      "coroutine_run_length_seconds",
      "Time for which coroutines run without a wait; means of up to 64 runs.",
      metrics.runLength
    )
    histogram(
      "coroutine_timer_lateness_seconds",
      "Time from a deadline until its timer fires; one in 64 is sampled.",
      metrics.timerLateness
    )
    gauge("coroutine_stacks_in_use", "Stacks that coroutines and generators use.", metrics.stacksInUse)
    gauge("coroutine_stacks_pooled", "Stacks in the pool.", metrics.stacksPooled)
    gauge("coroutine_stack_resident_bytes", "Memory of stacks at least, a page for each.", metrics.stackBytes)
    gauge("coroutine_blocking_threads", "Threads of blocking work.", metrics.blockingThreads)
    gauge("coroutine_blocking_waiting", "Bodies of blocking work that wait for a thread.", metrics.blockingWaiting)
    gauge("coroutine_descriptors", "Open descriptors of the runtime.", metrics.descriptors)
    return text + families(of: queues)
  }

  /// The families about queues.
  ///
  /// Those with equal labels are one sample, with the sum of what they hold, and the longest time.
  private static func families(of queues: [CoroutineRuntime.HeldQueue]) -> String {
    var samples: [String: (count: Int, oldest: Duration)] = [:]
    for queue in queues {
      let (name, site) = (escaped((queue.name ?? "").asName), escaped(queue.site ?? ""))
      let labels = "kind=\"\(queue.kind.rawValue)\",name=\"\(name)\",site=\"\(site)\""
      let known = samples[labels] ?? (0, .zero)
      samples[labels] = (known.count + queue.count, max(known.oldest, queue.oldest))
    }
    let sorted = samples.sorted { $0.key < $1.key }
    func family(_ name: String, _ help: String, _ value: ((count: Int, oldest: Duration)) -> String) -> String {
      sorted.reduce(into: "# HELP \(name) \(help)\n# TYPE \(name) gauge\n") { text, sample in
        text += "\(name){\(sample.key)} \(value(sample.value))\n"
      }
    }
    let values = family("coroutine_queue_values", "Values, messages or unstarted coroutines.") { "\($0.count)" }
    return values
      + family("coroutine_queue_oldest_seconds", "Time for which the oldest is there, at least.") { seconds($0.oldest) }
  }

  /// The value of a label, without what would end it or the line.
  static func escaped(_ value: String) -> String {
    // By scalars: a quotation mark with a combining mark is one character.
    value.unicodeScalars.reduce(into: "") { text, scalar in
      switch scalar {
      case "\\": text += "\\\\"
      case "\"": text += "\\\""
      case "\n": text += "\\n"
      default: text.unicodeScalars.append(scalar)
      }
    }
  }

  /// A duration in seconds, as the shortest decimal number.
  static func seconds(_ duration: Duration) -> String { "\(Double(duration.nanoseconds) / 1e9)" }
}
