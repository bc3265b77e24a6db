def case(seed):
    return None
