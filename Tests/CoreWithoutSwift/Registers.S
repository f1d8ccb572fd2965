// int hold_registers(const uint64_t *patterns, uint64_t *seen, void (*piece)(void *), void *argument)
//
// Loads a pattern into every register that a call preserves, calls `piece`, and stores what the registers hold then.
// Returns their number. They are 10 general registers, the frame pointer and 8 halves of vector registers on aarch64,
// and 6 general registers on x86-64. Written in assembly, because a compiler neither fills all of them nor leaves them
// alone.
        .text
        .globl hold_registers
        .type hold_registers, %function
hold_registers:
#if defined(__aarch64__)
        stp x29, x30, [sp, #-176]!
        stp x19, x20, [sp, #16]
        stp x21, x22, [sp, #32]
        stp x23, x24, [sp, #48]
        stp x25, x26, [sp, #64]
        stp x27, x28, [sp, #80]
        stp d8, d9, [sp, #96]
        stp d10, d11, [sp, #112]
        stp d12, d13, [sp, #128]
        stp d14, d15, [sp, #144]
        str x1, [sp, #160]

        ldp x19, x20, [x0]
        ldp x21, x22, [x0, #16]
        ldp x23, x24, [x0, #32]
        ldp x25, x26, [x0, #48]
        ldp x27, x28, [x0, #64]
        ldr x29, [x0, #80]
        ldp d8, d9, [x0, #88]
        ldp d10, d11, [x0, #104]
        ldp d12, d13, [x0, #120]
        ldp d14, d15, [x0, #136]
        mov x0, x3
        blr x2

        ldr x1, [sp, #160]
        stp x19, x20, [x1]
        stp x21, x22, [x1, #16]
        stp x23, x24, [x1, #32]
        stp x25, x26, [x1, #48]
        stp x27, x28, [x1, #64]
        str x29, [x1, #80]
        stp d8, d9, [x1, #88]
        stp d10, d11, [x1, #104]
        stp d12, d13, [x1, #120]
        stp d14, d15, [x1, #136]
        mov w0, #19

        ldp x19, x20, [sp, #16]
        ldp x21, x22, [sp, #32]
        ldp x23, x24, [sp, #48]
        ldp x25, x26, [sp, #64]
        ldp x27, x28, [sp, #80]
        ldp d8, d9, [sp, #96]
        ldp d10, d11, [sp, #112]
        ldp d12, d13, [sp, #128]
        ldp d14, d15, [sp, #144]
        ldp x29, x30, [sp], #176
        ret
#elif defined(__x86_64__)
        pushq %rbx
        pushq %rbp
        pushq %r12
        pushq %r13
        pushq %r14
        pushq %r15
        pushq %rsi

        movq (%rdi), %rbx
        movq 8(%rdi), %rbp
        movq 16(%rdi), %r12
        movq 24(%rdi), %r13
        movq 32(%rdi), %r14
        movq 40(%rdi), %r15
        movq %rcx, %rdi
        callq *%rdx

        popq %rsi
        movq %rbx, (%rsi)
        movq %rbp, 8(%rsi)
        movq %r12, 16(%rsi)
        movq %r13, 24(%rsi)
        movq %r14, 32(%rsi)
        movq %r15, 40(%rsi)
        movl $6, %eax

        popq %r15
        popq %r14
        popq %r13
        popq %r12
        popq %rbp
        popq %rbx
        retq
#endif
        .size hold_registers, . - hold_registers
        .section .note.GNU-stack, "", %progbits
