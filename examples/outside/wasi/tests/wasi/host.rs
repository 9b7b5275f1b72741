//! The few WASI functions that a program without files needs (WASI preview 1, `wasi_snapshot_preview1`). Any
//! other import is an error that names it.

use wasmi::{Caller, Engine, Error, Linker, Memory, Module, Store};

use crate::Ended;

/// WASI preview 1, `errno`.
const SUCCESS: i32 = 0;
const BAD_DESCRIPTOR: i32 = 8;

#[derive(Default)]
struct World {
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Runs a program with this on its standard input.
pub(crate) fn run(module: &[u8], input: &[u8]) -> Ended {
    let engine = Engine::default();
    let module = Module::new(&engine, module).unwrap();
    let world = World { input: input.to_vec(), output: Vec::new() };
    let mut store = Store::new(&engine, world);
    let mut linker = Linker::new(&engine);
    define(&mut linker);
    let instance = linker.instantiate_and_start(&mut store, &module).unwrap();
    let start = instance.get_typed_func::<(), ()>(&store, "_start").unwrap();
    let status = match start.call(&mut store, ()) {
        Ok(()) => 0,
        Err(error) => error.i32_exit_status().unwrap_or_else(|| panic!("{error}")),
    };
    Ended { status, printed: String::from_utf8(store.into_data().output).unwrap() }
}

fn define(linker: &mut Linker<World>) {
    let wasi = "wasi_snapshot_preview1";
    linker.func_wrap(wasi, "fd_read", fd_read).unwrap();
    linker.func_wrap(wasi, "fd_write", fd_write).unwrap();
    linker.func_wrap(wasi, "environ_sizes_get", no_environment).unwrap();
    linker.func_wrap(wasi, "environ_get", |_: i32, _: i32| SUCCESS).unwrap();
    let exit = |status: i32| -> Result<(), Error> { Err(Error::i32_exit(status)) };
    linker.func_wrap(wasi, "proc_exit", exit).unwrap();
}

fn fd_read(mut caller: Caller<'_, World>, fd: i32, list: i32, count: i32, read: i32) -> i32 {
    if fd != 0 {
        return BAD_DESCRIPTOR;
    }
    let memory = memory(&caller);
    let mut total = 0;
    for (at, size) in buffers(&caller, memory, list, count) {
        let size = size.min(caller.data().input.len());
        let part: Vec<u8> = caller.data_mut().input.drain(..size).collect();
        memory.write(&mut caller, at, &part).unwrap();
        total += size;
    }
    put(&mut caller, memory, read, total);
    SUCCESS
}

fn fd_write(mut caller: Caller<'_, World>, fd: i32, list: i32, count: i32, written: i32) -> i32 {
    if !matches!(fd, 1 | 2) {
        return BAD_DESCRIPTOR;
    }
    let memory = memory(&caller);
    let mut total = 0;
    for (at, size) in buffers(&caller, memory, list, count) {
        let mut part = vec![0; size];
        memory.read(&caller, at, &mut part).unwrap();
        if fd == 1 {
            caller.data_mut().output.extend(part);
        }
        total += size;
    }
    put(&mut caller, memory, written, total);
    SUCCESS
}

fn no_environment(mut caller: Caller<'_, World>, count: i32, size: i32) -> i32 {
    let memory = memory(&caller);
    put(&mut caller, memory, count, 0);
    put(&mut caller, memory, size, 0);
    SUCCESS
}

fn memory(caller: &Caller<'_, World>) -> Memory {
    let export = caller.get_export("memory").unwrap();
    export.into_memory().unwrap()
}

/// Address and size of each buffer of a list (WASI preview 1, `iovec`).
fn buffers(
    caller: &Caller<'_, World>,
    memory: Memory,
    list: i32,
    count: i32,
) -> Vec<(usize, usize)> {
    let number = |at: usize| {
        let mut bytes = [0; 4];
        memory.read(caller, at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes) as usize
    };
    let list = usize::try_from(list).unwrap();
    let entry = |index| (number(list + 8 * index), number(list + 8 * index + 4));
    (0..usize::try_from(count).unwrap()).map(entry).collect()
}

fn put(caller: &mut Caller<'_, World>, memory: Memory, at: i32, number: usize) {
    let number = u32::try_from(number).unwrap().to_le_bytes();
    memory.write(caller, usize::try_from(at).unwrap(), &number).unwrap();
}
