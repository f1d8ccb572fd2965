import Coroutine
import Harness

// Values handed over, waited for, refused and selected: nothing of it may allocate once the channel is made.

func countChannels(into counts: inout Counts) throws {
  try counts.countWithin("channel_rendezvous", 1000) { count in
    let (there, back) = (Channel<Int>(), Channel<Int>())
    co_launch { while let value = try there.receive() { try back.send(value) } }
    return {
      var sum = 0
      for value in 0..<count {
        try there.send(value)
        sum += try back.receive() ?? 0
      }
      expect(sum, equals: count * (count - 1) / 2, "sum of what came back")
    }
  }
  try counts.countWithin("channel_buffered", 1000) { count in
    let channel = Channel<String>(16)
    let word = String(repeating: "a text with a buffer ", count: 3)
    co_launch { for _ in 0..<count { try channel.send(word) } }
    return { for _ in 0..<count { expect(try channel.receive(), equals: word, "what was received") } }
  }
  try counts.countWithin("channel_try", 1000) { count in
    let channel = Channel<(Int, Int, Int, Int, Int)>(1)
    return {
      for value in 0..<count {
        expect(channel.trySend((value, 0, 0, 0, value)) == .sent, "there is room")
        expect(channel.trySend((value, 0, 0, 0, value)) == .full, "there is none")
        guard case .received(let found) = channel.tryReceive() else { continue }
        expect(found.4, equals: value, "what was received")
      }
    }
  }
  try counts.countWithin("channel_iteration", 1000) { count in
    let channel = Channel<Int>(.dropOldest(4))
    co_launch {
      for value in 0..<count {
        try channel.send(value)
        try co_yield()
      }
      channel.close()
    }
    return {
      var sum = 0
      try channel.forEach { sum += $0 }
      expect(sum, equals: count * (count - 1) / 2, "sum of the values")
    }
  }
  try countSelecting(into: &counts)
}

private func countSelecting(into counts: inout Counts) throws {
  try counts.countWithin("select_waiting", 1000) { count in
    let (left, right) = (Channel<Int>(), Channel<String>())
    co_launch {
      for _ in 0..<(count / 2) {
        try left.send(1)
        try right.send("two")
      }
    }
    return {
      var sum = 0
      for _ in 0..<count {
        sum += try co_select {
          left.onReceive { $0 ?? 0 }
          right.onReceive { $0?.count ?? 0 }
          SelectCase.onTimeout(.seconds(60)) { 0 }
        }
      }
      expect(sum, equals: count * 2, "sum of what was selected")
    }
  }
  try counts.countWithin("select_of_eight", 1000) { count in
    let channels = (0..<4).map { _ in Channel<Int>(1) }
    let (promise, job) = (Promise<Int>(), co_launch { try co_delay(.seconds(3600)) })
    return {
      for value in 0..<count {
        _ = channels[value & 3].trySend(value)
        let found = try co_select {
          channels[0].onReceive { $0 ?? -1 }
          channels[1].onReceive { $0 ?? -1 }
          if value >= 0 { channels[2].onReceive { $0 ?? -1 } }
          channels[3].onReceive { $0 ?? -1 }
          promise.onAwait { _ in -2 }
          job.onAwait { _ in -3 }
          SelectCase.onTimeout(.seconds(60)) { -4 }
          SelectCase.otherwise { -5 }
        }
        expect(found, equals: value, "what was selected")
      }
      job.cancel()
    }
  }
  try counts.countWithin("select_sending", 1000) { count in
    let channel = Channel<Int>()
    let never = Channel<Int>()
    co_launch { while try channel.receive() != nil {} }
    return {
      for value in 0..<count {
        let sent = try co_select {
          never.onSend(value) { -1 }
          channel.onSend(value) { 1 }
        }
        expect(sent, equals: 1, "the case that sent")
      }
      channel.close()
    }
  }
}
