import Coroutine

/// Stands for a database or another server: a plain function that waits.
func ask(_ name: String, _ time: Duration) throws -> String {
  try co_delay(time)
  return "\(name) has answered"
}

co_main {
  let names = ["slow": Duration.milliseconds(300), "quick": .milliseconds(100)]
  let answers = Channel<String>()
  try co_scope { scope in
    for (name, time) in names {
      scope.launch(name: name) { try answers.send(ask(name, time)) }
    }
    for _ in names { print(try answers.receive() ?? "") }
  }
  do {
    print(try co_timeout(.milliseconds(50)) { try ask("late", .seconds(5)) })
  } catch is TimeoutError {
    print("too late")
  }
}
