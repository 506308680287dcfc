"""The planner: what a deployment of a DeepSeek-V3-class model will do, before anyone pays for it.

    hardware, model_shapes          data: what a GPU and a model are
    operations -> efficiency        one kernel: FLOPs and bytes, then microseconds
    communication                   one dispatch, one combine
    schedule -> layer -> step       five stages on two resources, then a whole pass of the model
    memory                          what fits, to the byte
    deployment, pareto, ratio       a sweep, its front, and how to split GPUs between prefill and decode
    published, measured, fit        what others and we have measured, and the constants that follow

Everything is a function of plain data and nothing needs a GPU.
"""
